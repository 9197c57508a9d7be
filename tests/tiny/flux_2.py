"""Tiny FLUX.2 klein and dev folders with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from modules.spec.families.flux_2 import SOURCES
from tests.tiny.mistral import build_mistral_3, write_mistral_tokenizer
from tests.tiny.pieces import write_folder
from tests.tiny.qwen import build_qwen3, write_qwen_tokenizer
from tests.tiny.source_images import source_images

TEXT_WIDTH, LENGTH, DEV_LENGTH = 8, 32, 64
SYSTEM = (
    "You are an AI that reasons about image descriptions. You give structured responses focusing on object "
    "relationships, object\nattribution and actions without speculation."
)
SCHEDULER = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "shift": 3.0,
    "use_dynamic_shifting": True,
    "base_shift": 0.5,
    "max_shift": 1.15,
    "time_shift_type": "exponential",
}


def build_transformer(channels: int = 8, guidance: bool = False) -> torch.nn.Module:
    from diffusers.models.transformers.transformer_flux2 import Flux2Transformer2DModel

    return Flux2Transformer2DModel(
        in_channels=channels,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=3 * TEXT_WIDTH,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=guidance,
    )


def build_patch_vae(factor: int, channels: int = 2) -> torch.nn.Module:
    from diffusers.models.autoencoders.autoencoder_kl_flux2 import AutoencoderKLFlux2

    levels = factor.bit_length()
    vae = AutoencoderKLFlux2(
        block_out_channels=(8,) * levels,
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        latent_channels=channels,
        layers_per_block=1,
        norm_num_groups=4,
    )
    vae.bn.running_mean.normal_()
    vae.bn.running_var.uniform_(0.5, 2.0)
    return vae


def write(folder: Path, prediction: str, factor: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = write_qwen_tokenizer(folder / "tokenizer", LENGTH)
        modules = {
            "transformer": build_transformer(),
            # read at the depths of the real one
            "text_encoder": build_qwen3(size, TEXT_WIDTH, layers=28, head=True),
            "vae": build_patch_vae(factor),
        }
        write_folder(folder, "Flux2KleinPipeline", modules, {"tokenizer": "Qwen2Tokenizer"}, SCHEDULER)


def write_dev(folder: Path, prediction: str, factor: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = write_mistral_tokenizer(folder / "tokenizer", DEV_LENGTH, "left", SYSTEM)
        modules = {
            "transformer": build_transformer(guidance=True),
            "text_encoder": build_mistral_3(size, TEXT_WIDTH, layers=31),
            "vae": build_patch_vae(factor),
        }
        tokenizers = {"tokenizer": "PreTrainedTokenizerFast"}
        write_folder(folder, "Flux2Pipeline", modules, tokenizers, SCHEDULER)


def _pipeline(cfg: float) -> dict[str, Any]:
    """This pipeline takes a negative prompt only encoded."""
    from diffusers import Flux2KleinPipeline

    from tests.tiny import tiny_folder

    made = Flux2KleinPipeline.from_pretrained(str(tiny_folder("FLUX_2")), transformer=None, vae=None)
    with torch.no_grad():
        negative_BLE, _ = made.encode_prompt(["blue", "blue"], device="cpu", max_sequence_length=LENGTH)
    return {
        "negative_prompt": None,
        "negative_prompt_embeds": negative_BLE,
        "max_sequence_length": LENGTH,
        "image": source_images(SOURCES),
    }


def _pipeline_dev(cfg: float) -> dict[str, Any]:
    return {"negative_prompt": None, "max_sequence_length": DEV_LENGTH, "image": source_images(SOURCES)}


FAMILIES = {"FLUX_2": write, "FLUX_2_DEV": write_dev}
PIPELINE = {"FLUX_2": _pipeline, "FLUX_2_DEV": _pipeline_dev}
