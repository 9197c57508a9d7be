"""Tiny Qwen-Image and Qwen-Image-Edit folders with random weights."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.tiny.pieces import write_folder
from tests.tiny.qwen import build_qwen_vl, picture_marks, write_qwen_tokenizer
from tests.tiny.source_images import SIDE, source_images

TEXT_WIDTH = 16


def build_transformer(channels: int = 4, **more: bool) -> torch.nn.Module:
    from diffusers.models.transformers.transformer_qwenimage import QwenImageTransformer2DModel

    return QwenImageTransformer2DModel(
        in_channels=4 * channels,
        out_channels=channels,
        # the last layer makes no more of its text; the more there are, the less it counts
        num_layers=3,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=TEXT_WIDTH,
        axes_dims_rope=(4, 6, 6),
        **more,
    )


def build_video_vae(factor: int, channels: int = 4) -> torch.nn.Module:
    from diffusers.models.autoencoders.autoencoder_kl_qwenimage import AutoencoderKLQwenImage

    levels = factor.bit_length()
    return AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=channels,
        dim_mult=[1] * levels,
        num_res_blocks=1,
        temperal_downsample=[False, *[True] * (levels - 2)],
        latents_mean=[0.1 * index - 0.2 for index in range(channels)],
        latents_std=[0.5 + 0.3 * index for index in range(channels)],
    )


def write(
    folder: Path, prediction: str, factor: int, pipeline: str = "QwenImagePipeline", **transformer: bool
) -> None:
    pictures = pipeline != "QwenImagePipeline"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = write_qwen_tokenizer(folder / "tokenizer", pictures=pictures)
        marks = picture_marks(folder / "tokenizer") if pictures else ()
        modules = {
            "transformer": build_transformer(**transformer),
            "text_encoder": build_qwen_vl(size, TEXT_WIDTH, pictures=marks),
            "vae": build_video_vae(factor),
        }
        scheduler = {
            "_class_name": "FlowMatchEulerDiscreteScheduler",
            "num_train_timesteps": 1000,
            "shift": 1.0,
            "use_dynamic_shifting": True,
            "base_image_seq_len": 256,
            "max_image_seq_len": 8192,
            "base_shift": 0.5,
            "max_shift": 0.9,
            "shift_terminal": 0.02,
            "time_shift_type": "exponential",
        }
        write_folder(folder, pipeline, modules, {"tokenizer": "Qwen2Tokenizer"}, scheduler)
    if pictures:
        add_processor(folder)


def add_processor(folder: Path, name: str = "processor") -> None:
    """What shows images to the text encoder, as it is published."""
    shutil.copytree(folder / "tokenizer", folder / name, dirs_exist_ok=True)
    config = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": 3136,
        "max_pixels": 12845056,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
    (folder / name / "preprocessor_config.json").write_text(json.dumps(config), encoding="utf-8")
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    index[name] = ["transformers", "Qwen2VLProcessor"]
    (folder / "model_index.json").write_text(json.dumps(index), encoding="utf-8")


def _pipeline(cfg: float) -> dict[str, object]:
    return {"guidance_scale": None, "true_cfg_scale": cfg}


class PictureProcessor:
    """What the published processor does, which needs torchvision: with the image processor of transformers that needs
    Pillow alone.
    """

    def __init__(self, folder: Path, name: str = "processor") -> None:
        from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self.tokenizer = Qwen2Tokenizer.from_pretrained(str(folder / name))
        self.image_processor = Qwen2VLImageProcessorPil.from_pretrained(str(folder / name))

    def __call__(self, text: list[str], images: Any, padding: bool, return_tensors: str) -> Any:
        from transformers import BatchFeature

        shown = self.image_processor(images, return_tensors=return_tensors)
        (whole,) = text
        pieces = whole.split("<|image_pad|>")
        counts = [int(grid.prod()) // 4 for grid in shown["image_grid_thw"]]
        pads = ["<|image_pad|>" * count for count in counts]
        joined = "".join(piece + pad for piece, pad in zip(pieces, [*pads, ""], strict=True))
        made = self.tokenizer([joined], padding=padding, return_tensors=return_tensors)
        return BatchFeature({**made, **shown})


def seeing_encoder(folder: Path) -> Any:
    """The text encoder as a pipeline is given it, which does not hand the kinds of tokens on, so that images would have
    no positions (docs/models.md).
    """
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLForConditionalGeneration

    encoder = Qwen2_5_VLForConditionalGeneration.from_pretrained(str(folder / "text_encoder"))

    def with_kinds(module: Any, args: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        kinds = (named["input_ids"] == module.config.image_token_id).int()
        return args, {**named, "mm_token_type_ids": kinds}

    encoder.register_forward_pre_hook(with_kinds, with_kwargs=True)
    return encoder


def _ready_to_edit(folder: Path, monkeypatch: Any) -> dict[str, Any]:
    """Components of an editing pipeline that cannot be loaded here. Sources keep their size, which is below that of
    the published model.
    """
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus

    monkeypatch.setattr(pipeline_qwenimage_edit, "calculate_dimensions", lambda *_: (SIDE, SIDE, None))
    monkeypatch.setattr(pipeline_qwenimage_edit_plus, "VAE_IMAGE_SIZE", SIDE**2)
    return {"processor": PictureProcessor(folder), "text_encoder": seeing_encoder(folder)}


def _edit(cfg: float) -> dict[str, object]:
    return {**_pipeline(cfg), "image": source_images(1)[0]}


def _edit_plus(cfg: float) -> dict[str, object]:
    return {**_pipeline(cfg), "image": source_images(3)}


FAMILIES = {
    "QWEN": write,
    "QWEN_EDIT": partial(write, pipeline="QwenImageEditPipeline"),
    "QWEN_EDIT_PLUS": partial(write, pipeline="QwenImageEditPlusPipeline"),
}
PIPELINE = {"QWEN": _pipeline, "QWEN_EDIT": _edit, "QWEN_EDIT_PLUS": _edit_plus}
PIPELINE_PARTS = {"QWEN_EDIT": _ready_to_edit, "QWEN_EDIT_PLUS": _ready_to_edit}
