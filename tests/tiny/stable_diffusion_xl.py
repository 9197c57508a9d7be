"""A tiny Stable Diffusion XL folder with random weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.tiny import stable_diffusion
from tests.tiny.pieces import build_clip, build_text_encoder, build_vae, write_clip_tokenizer, write_folder

TIME_WIDTH = 8


def build_unet(
    channels: tuple[int, ...] = (16, 32),
    depths: tuple[int, ...] = (1, 2),
    heads: tuple[int, ...] = (2, 4),
    context: int = 48,
    pooled: int = 24,
    groups: int = 8,
    time_width: int = TIME_WIDTH,
    layers: int = 1,
    inputs: int = 4,
) -> torch.nn.Module:
    """A UNet without attention at its finest level, deeper at each further one, told six numbers."""
    from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

    levels = len(channels)
    return UNet2DConditionModel(
        sample_size=16,
        in_channels=inputs,
        out_channels=4,
        block_out_channels=channels,
        layers_per_block=layers,
        cross_attention_dim=context,
        attention_head_dim=heads,
        transformer_layers_per_block=depths,
        norm_num_groups=groups,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=time_width,
        projection_class_embeddings_input_dim=pooled + 6 * time_width,
        down_block_types=("DownBlock2D", *["CrossAttnDownBlock2D"] * (levels - 1)),
        up_block_types=(*["CrossAttnUpBlock2D"] * (levels - 1), "UpBlock2D"),
    )


def xl_scheduler(prediction: str) -> dict[str, Any]:
    return stable_diffusion.scheduler_config(prediction) | {
        "_class_name": "EulerDiscreteScheduler",
        "timestep_spacing": "leading",
    }


def write(folder: Path, prediction: str, factor: int, inputs: int = 4) -> None:
    _write(
        folder,
        prediction,
        lambda words: {
            "unet": build_unet(inputs=inputs),
            "text_encoder": build_text_encoder(words),
            "text_encoder_2": build_clip(words),
            "vae": build_vae(factor),
        },
    )


def write_levels(folder: Path, prediction: str = "epsilon") -> None:
    """One with as many levels and layers as the published model, so that its layers have the same names."""
    _write(
        folder,
        prediction,
        lambda words: {
            "unet": build_unet((8, 16, 16), (1, 1, 2), (1, 2, 2), layers=2),
            "text_encoder": build_text_encoder(words),
            "text_encoder_2": build_clip(words),
            "vae": build_vae(4),
        },
    )


def write_standard(folder: Path, prediction: str = "epsilon") -> None:
    """One whose head counts, norm groups and scaling are the published model's, which single files do not state."""
    _write(
        folder,
        prediction,
        lambda words: {
            "unet": build_unet((64, 128), (1, 2), (1, 2), context=128, pooled=64, groups=32, time_width=256),
            "text_encoder": build_text_encoder(words, width=64, heads=1),
            "text_encoder_2": build_clip(words, width=64, heads=1, activation="gelu"),
            "vae": stable_diffusion.build_vae(4, width=32, groups=32, scaling=0.13025),
        },
    )


def _write(folder: Path, prediction: str, modules: Callable[[int], dict[str, torch.nn.Module]]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        words = write_clip_tokenizer(folder / "tokenizer")
        write_clip_tokenizer(folder / "tokenizer_2", pad_token="!")
        tokenizers = {"tokenizer": "CLIPTokenizer", "tokenizer_2": "CLIPTokenizer"}
        write_folder(
            folder, "StableDiffusionXLPipeline", modules(words), tokenizers, xl_scheduler(prediction)
        )


def write_inpainting(folder: Path, prediction: str, factor: int) -> None:
    write(folder, prediction, factor, inputs=9)


FAMILIES = {
    "STABLE_DIFFUSION_XL_10_BASE": write,
    "STABLE_DIFFUSION_XL_10_BASE_INPAINTING": write_inpainting,
}
SIZED = {
    "STABLE_DIFFUSION_XL_10_BASE_INPAINTING": partial(
        stable_diffusion.paint_everything, "STABLE_DIFFUSION_XL_10_BASE_INPAINTING"
    )
}
