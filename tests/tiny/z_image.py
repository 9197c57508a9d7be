"""A tiny Z-Image folder with random weights."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.tiny.pieces import build_vae, write_folder
from tests.tiny.qwen import build_qwen3, write_qwen_tokenizer

TEXT_WIDTH = 16


def build_transformer() -> torch.nn.Module:
    from diffusers.models.transformers.transformer_z_image import ZImageTransformer2DModel

    return ZImageTransformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=1,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=TEXT_WIDTH,
        axes_dims=[4, 6, 6],
        axes_lens=[1024, 64, 64],
    )


def write(folder: Path, prediction: str, factor: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = write_qwen_tokenizer(folder / "tokenizer")
        modules = {
            "transformer": build_transformer(),
            # the last layer is not read; the more there are, the less it counts
            "text_encoder": build_qwen3(size, TEXT_WIDTH, layers=6),
            "vae": build_vae(factor, shift=0.1, quant=False),
        }
        scheduler = {
            "_class_name": "FlowMatchEulerDiscreteScheduler",
            "num_train_timesteps": 1000,
            "shift": 3.0,
            "use_dynamic_shifting": False,
        }
        write_folder(folder, "ZImagePipeline", modules, {"tokenizer": "Qwen2Tokenizer"}, scheduler)


def _pipeline(cfg: float) -> dict[str, object]:
    # this pipeline counts guidance from 0
    return {"guidance_scale": cfg - 1.0}


FAMILIES = {"Z_IMAGE": write}
PIPELINE = {"Z_IMAGE": _pipeline}
