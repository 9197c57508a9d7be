"""A tiny Lumina 2 folder with random weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from tests.tiny.pieces import build_vae, write_folder
from tests.tiny.sana import build_gemma, write_gemma_tokenizer

TEXT_WIDTH = 20
INSTRUCTION = (
    "You are an assistant designed to generate superior images with the superior degree of image-text alignment "
    "based on textual prompts or user prompts. <Prompt Start> "
)


def build_transformer(channels: int = 4) -> torch.nn.Module:
    from diffusers.models.transformers.transformer_lumina2 import Lumina2Transformer2DModel

    return Lumina2Transformer2DModel(
        sample_size=8,
        in_channels=channels,
        hidden_size=32,
        num_layers=2,
        num_refiner_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=16,
        axes_dim_rope=(4, 6, 6),
        axes_lens=(300, 64, 64),
        cap_feat_dim=TEXT_WIDTH,
    )


def write(folder: Path, prediction: str, factor: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # as many pieces as the published tokenizer makes of it
        pieces = re.findall(r" ?[A-Za-z]+|[-.]| <|> ", INSTRUCTION)
        size = write_gemma_tokenizer(folder / "tokenizer", 4096, pieces)
        modules = {
            "transformer": build_transformer(),
            # the last layer is not read; the more there are, the less it counts
            "text_encoder": build_gemma(size, TEXT_WIDTH, layers=6, length=512),
            "vae": build_vae(factor, shift=0.1, quant=False),
        }
        scheduler = {
            "_class_name": "FlowMatchEulerDiscreteScheduler",
            "num_train_timesteps": 1000,
            "shift": 6.0,
            "use_dynamic_shifting": True,
            # so short that it matters what is counted
            "base_image_seq_len": 2,
            "max_image_seq_len": 32,
            "base_shift": 0.5,
            "max_shift": 1.15,
        }
        write_folder(folder, "Lumina2Pipeline", modules, {"tokenizer": "GemmaTokenizerFast"}, scheduler)


def sized_as_the_vae(folder: Path, monkeypatch: Any) -> dict[str, object]:
    """Let the pipeline make latents of the size that the autoencoder has; it takes 8 pixels for granted."""
    from diffusers import Lumina2Pipeline

    prepare: Any = Lumina2Pipeline.prepare_latents

    def sized(self: Any, *given: Any, **named: Any) -> Any:
        self.vae_scale_factor = 2 ** (len(self.vae.config.block_out_channels) - 1)
        return prepare(self, *given, **named)

    monkeypatch.setattr(Lumina2Pipeline, "prepare_latents", sized)
    return {}


FAMILIES = {"LUMINA_2": write}
PIPELINE_PARTS = {"LUMINA_2": sized_as_the_vae}
