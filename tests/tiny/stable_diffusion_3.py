"""A tiny Stable Diffusion 3 folder with random weights."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.tiny.pieces import (
    T5_LENGTH,
    build_clip,
    build_t5,
    build_vae,
    write_clip_tokenizer,
    write_folder,
    write_t5_tokenizer,
)


def build_transformer(newer: bool, joint: int = 48) -> torch.nn.Module:
    from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel

    return SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=3,
        joint_attention_dim=joint,
        caption_projection_dim=24,
        pooled_projection_dim=48,
        pos_embed_max_size=16,
        dual_attention_layers=(0,) if newer else (),
        qk_norm="rms_norm" if newer else None,
    )


def write(folder: Path, factor: int, newer: bool = False, with_t5: bool = True) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = write_clip_tokenizer(folder / "tokenizer")
        second = write_clip_tokenizer(folder / "tokenizer_2")
        modules = {
            "transformer": build_transformer(newer),
            "text_encoder": build_clip(first),
            "text_encoder_2": build_clip(second),
        }
        tokenizers = {"tokenizer": "CLIPTokenizer", "tokenizer_2": "CLIPTokenizer"}
        if with_t5:
            modules["text_encoder_3"] = build_t5(write_t5_tokenizer(folder / "tokenizer_3"), width=48)
            tokenizers["tokenizer_3"] = "T5TokenizerFast"
        modules["vae"] = build_vae(factor, shift=0.1, quant=False)
        scheduler = {
            "_class_name": "FlowMatchEulerDiscreteScheduler",
            "num_train_timesteps": 1000,
            "shift": 3.0,
        }
        write_folder(folder, "StableDiffusion3Pipeline", modules, tokenizers, scheduler)


def write_first(folder: Path, prediction: str, factor: int) -> None:
    write(folder, factor)


def write_newer(folder: Path, prediction: str, factor: int) -> None:
    write(folder, factor, newer=True)


FAMILIES = {"STABLE_DIFFUSION_3": write_first, "STABLE_DIFFUSION_35": write_newer}


def _pipeline(cfg: float) -> dict[str, object]:
    return {"max_sequence_length": T5_LENGTH}


PIPELINE = dict.fromkeys(FAMILIES, _pipeline)
