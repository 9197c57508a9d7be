"""A tiny FLUX.1 folder with random weights."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.tiny.pieces import (
    T5_LENGTH,
    build_t5,
    build_text_encoder,
    build_vae,
    write_clip_tokenizer,
    write_folder,
    write_t5_tokenizer,
)
from tests.tiny.source_images import source_images


def build_transformer(guidance: bool, joint: int = 20, pooled: int = 24) -> torch.nn.Module:
    from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel

    return FluxTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=joint,
        pooled_projection_dim=pooled,
        guidance_embeds=guidance,
        axes_dims_rope=(4, 6, 6),
    )


def _write(folder: Path, factor: int, guidance: bool, pipeline: str = "FluxPipeline") -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        clip_size = write_clip_tokenizer(folder / "tokenizer")
        t5_size = write_t5_tokenizer(folder / "tokenizer_2")
        modules = {
            "transformer": build_transformer(guidance),
            "text_encoder": build_text_encoder(clip_size),
            "text_encoder_2": build_t5(t5_size),
            "vae": build_vae(factor, shift=0.1, quant=False),
        }
        scheduler = {
            "_class_name": "FlowMatchEulerDiscreteScheduler",
            "num_train_timesteps": 1000,
            "shift": 3.0 if guidance else 1.0,
            "use_dynamic_shifting": guidance,
            "base_image_seq_len": 256,
            "max_image_seq_len": 4096,
            "base_shift": 0.5,
            "max_shift": 1.15,
        }
        tokenizers = {"tokenizer": "CLIPTokenizer", "tokenizer_2": "T5TokenizerFast"}
        write_folder(folder, pipeline, modules, tokenizers, scheduler)


def write_dev(folder: Path, prediction: str, factor: int) -> None:
    _write(folder, factor, guidance=True)


def write_schnell(folder: Path, prediction: str, factor: int) -> None:
    _write(folder, factor, guidance=False)


def write_kontext(folder: Path, prediction: str, factor: int) -> None:
    _write(folder, factor, guidance=True, pipeline="FluxKontextPipeline")


FAMILIES = {"FLUX_DEV_1": write_dev, "FLUX_SCHNELL_1": write_schnell, "FLUX_KONTEXT_DEV_1": write_kontext}


def _pipeline(cfg: float) -> dict[str, object]:
    return {"max_sequence_length": T5_LENGTH, "negative_prompt": None}


def _pipeline_schnell(cfg: float) -> dict[str, object]:
    # this pipeline takes a second pass only for what it calls the true guidance scale
    return {"max_sequence_length": T5_LENGTH, "true_cfg_scale": cfg}


def _pipeline_kontext(cfg: float) -> dict[str, object]:
    return {**_pipeline(cfg), "image": source_images(1)[0], "_auto_resize": False}


PIPELINE = {
    "FLUX_DEV_1": _pipeline,
    "FLUX_SCHNELL_1": _pipeline_schnell,
    "FLUX_KONTEXT_DEV_1": _pipeline_kontext,
}
# sizes are those asked for, not those of a megapixel
SIZED = {"FLUX_KONTEXT_DEV_1": lambda size: {"max_area": size[0] * size[1]}}
