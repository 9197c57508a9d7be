"""Tiny LongCat-Image and LongCat-Image-Edit folders with random weights."""

from __future__ import annotations

import functools
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.tiny import SIZE
from tests.tiny.pieces import build_vae, write_folder
from tests.tiny.qwen import build_qwen_vl, picture_marks, write_qwen_tokenizer
from tests.tiny.qwen_image import PictureProcessor, add_processor, seeing_encoder
from tests.tiny.source_images import source_images

TEXT_WIDTH = 16
CHANNELS = 16
"""Fixed in the pipeline."""


def build_transformer(channels: int = CHANNELS) -> torch.nn.Module:
    from diffusers.models.transformers.transformer_longcat_image import LongCatImageTransformer2DModel

    return LongCatImageTransformer2DModel(
        in_channels=4 * channels,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=TEXT_WIDTH,
        axes_dims_rope=(4, 6, 6),
    )


def write(folder: Path, prediction: str, factor: int, pipeline: str = "LongCatImagePipeline") -> None:
    pictures = pipeline != "LongCatImagePipeline"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = write_qwen_tokenizer(folder / "tokenizer", pictures=pictures)
        marks = picture_marks(folder / "tokenizer") if pictures else ()
        modules = {
            "transformer": build_transformer(),
            "text_encoder": build_qwen_vl(size, TEXT_WIDTH, pictures=marks),
            "vae": build_vae(factor, CHANNELS, shift=0.1, quant=False),
        }
        scheduler = {
            "_class_name": "FlowMatchEulerDiscreteScheduler",
            "num_train_timesteps": 1000,
            "shift": 3.0,
            "use_dynamic_shifting": True,
            "base_image_seq_len": 256,
            "max_image_seq_len": 4096,
            "base_shift": 0.5,
            "max_shift": 1.15,
        }
        write_folder(folder, pipeline, modules, {"tokenizer": "Qwen2Tokenizer"}, scheduler)
        add_processor(folder, "text_processor")


def without_processor(folder: Path, monkeypatch: Any) -> dict[str, object]:
    """What rewrites prompts needs torchvision."""
    return {"text_processor": None}


def editing(folder: Path, monkeypatch: Any, size: tuple[int, int] = SIZE) -> dict[str, object]:
    """Components of the editing pipeline that cannot be loaded here.

    Args:
        size: (height, width) of the image that is edited and of what is made of it, which is about a megapixel in the
            published pipeline.
    """
    from diffusers.pipelines.longcat_image import pipeline_longcat_image_edit as module

    processor = PictureProcessor(folder, "text_processor")
    own_init, own_call = (getattr(module.LongCatImageEditPipeline, name) for name in ("__init__", "__call__"))

    @functools.wraps(own_init)
    def made(self: Any, **parts: Any) -> None:
        own_init(self, **{**parts, "text_processor": processor})

    def call(self: Any, height: int, width: int, **options: Any) -> Any:
        return own_call(self, **options)

    monkeypatch.setattr(module, "calculate_dimensions", lambda *_: size[::-1])
    monkeypatch.setattr(module.LongCatImageEditPipeline, "__init__", made)
    monkeypatch.setattr(module.LongCatImageEditPipeline, "__call__", call)
    return {"text_processor": processor, "text_encoder": seeing_encoder(folder)}


def _pipeline(cfg: float) -> dict[str, object]:
    return {"enable_prompt_rewrite": False}


def _edit(cfg: float) -> dict[str, object]:
    return {"image": source_images(1, SIZE[0])[0]}


FAMILIES = {
    "LONGCAT_IMAGE": write,
    "LONGCAT_IMAGE_EDIT": partial(write, pipeline="LongCatImageEditPipeline"),
}
PIPELINE = {"LONGCAT_IMAGE": _pipeline, "LONGCAT_IMAGE_EDIT": _edit}
PIPELINE_PARTS = {"LONGCAT_IMAGE": without_processor, "LONGCAT_IMAGE_EDIT": editing}
SOURCE_SIDES = {"LONGCAT_IMAGE_EDIT": SIZE[0]}
