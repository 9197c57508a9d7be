"""A tiny Chroma folder with random weights."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.tiny.pieces import T5_LENGTH, build_t5, build_vae, write_folder, write_t5_tokenizer


def build_transformer() -> torch.nn.Module:
    from diffusers.models.transformers.transformer_chroma import ChromaTransformer2DModel

    return ChromaTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=20,
        axes_dims_rope=(4, 6, 6),
        approximator_num_channels=8,
        approximator_hidden_dim=16,
        approximator_layers=1,
    )


def write(folder: Path, prediction: str, factor: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = write_t5_tokenizer(folder / "tokenizer")
        modules = {
            "transformer": build_transformer(),
            "text_encoder": build_t5(size),
            "vae": build_vae(factor, shift=0.1, quant=False),
        }
        scheduler = {
            "_class_name": "FlowMatchEulerDiscreteScheduler",
            "num_train_timesteps": 1000,
            "shift": 1.0,
            "use_dynamic_shifting": True,
            "base_shift": 0.5,
            "max_shift": 1.15,
        }
        write_folder(folder, "ChromaPipeline", modules, {"tokenizer": "T5TokenizerFast"}, scheduler)


def _pipeline(cfg: float) -> dict[str, object]:
    return {"max_sequence_length": T5_LENGTH}


FAMILIES = {"CHROMA_1": write}
PIPELINE = {"CHROMA_1": _pipeline}
