"""A tiny Krea 2 folder with random weights."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.tiny.pieces import write_folder
from tests.tiny.qwen import build_qwen3_vl, write_qwen_tokenizer
from tests.tiny.qwen_image import build_video_vae

TEXT_WIDTH = 8


def build_transformer(channels: int = 4) -> torch.nn.Module:
    from diffusers.models.transformers.transformer_krea2 import Krea2Transformer2DModel

    return Krea2Transformer2DModel(
        in_channels=4 * channels,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=48,
        timestep_embed_dim=16,
        text_hidden_dim=TEXT_WIDTH,
        text_num_attention_heads=2,
        text_num_key_value_heads=2,
        text_intermediate_size=12,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        axes_dims_rope=(4, 6, 6),
    )


def write(folder: Path, prediction: str, factor: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = write_qwen_tokenizer(folder / "tokenizer")
        modules = {
            "transformer": build_transformer(),
            # read at the depths of the real one
            "text_encoder": build_qwen3_vl(size, TEXT_WIDTH, layers=36),
            "vae": build_video_vae(factor),
        }
        scheduler = {
            "_class_name": "FlowMatchEulerDiscreteScheduler",
            "num_train_timesteps": 1000,
            "shift": 1.0,
            "use_dynamic_shifting": True,
            "base_image_seq_len": 256,
            "max_image_seq_len": 6400,
            "base_shift": 0.5,
            "max_shift": 1.15,
            "time_shift_type": "exponential",
        }
        write_folder(folder, "Krea2Pipeline", modules, {"tokenizer": "Qwen2Tokenizer"}, scheduler)


def _pipeline(cfg: float) -> dict[str, object]:
    # this pipeline counts guidance from 0
    return {"guidance_scale": cfg - 1.0}


FAMILIES = {"KREA_2": write}
PIPELINE = {"KREA_2": _pipeline}
