"""A tiny LongCat-Image folder with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.tiny.pieces import build_vae, write_folder
from tests.tiny.qwen import build_qwen_vl, write_qwen_tokenizer
from tests.tiny.qwen_image import add_processor

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


def write(folder: Path, prediction: str, factor: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = write_qwen_tokenizer(folder / "tokenizer")
        modules = {
            "transformer": build_transformer(),
            "text_encoder": build_qwen_vl(size, TEXT_WIDTH),
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
        write_folder(folder, "LongCatImagePipeline", modules, {"tokenizer": "Qwen2Tokenizer"}, scheduler)
        add_processor(folder, "text_processor")


def without_processor(folder: Path, monkeypatch: Any) -> dict[str, object]:
    """What rewrites prompts needs torchvision."""
    return {"text_processor": None}


def _pipeline(cfg: float) -> dict[str, object]:
    return {"enable_prompt_rewrite": False}


FAMILIES = {"LONGCAT_IMAGE": write}
PIPELINE = {"LONGCAT_IMAGE": _pipeline}
PIPELINE_PARTS = {"LONGCAT_IMAGE": without_processor}
