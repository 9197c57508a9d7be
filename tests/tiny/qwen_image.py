"""A tiny Qwen-Image folder with random weights."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.tiny.pieces import write_folder
from tests.tiny.qwen import build_qwen_vl, write_qwen_tokenizer

TEXT_WIDTH = 16


def build_transformer(channels: int = 4) -> torch.nn.Module:
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


def write(folder: Path, prediction: str, factor: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = write_qwen_tokenizer(folder / "tokenizer")
        modules = {
            "transformer": build_transformer(),
            "text_encoder": build_qwen_vl(size, TEXT_WIDTH),
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
        write_folder(folder, "QwenImagePipeline", modules, {"tokenizer": "Qwen2Tokenizer"}, scheduler)


def _pipeline(cfg: float) -> dict[str, object]:
    return {"guidance_scale": None, "true_cfg_scale": cfg}


FAMILIES = {"QWEN": write}
PIPELINE = {"QWEN": _pipeline}
