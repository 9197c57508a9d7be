"""Lumina 2: Gemma 2 reads an instruction before each prompt; a single-stream transformer over text and image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.noising.sampling import make_sampler
from modules.model.text.encoding import causal_states
from modules.model.text.NegativePrompt import NegativePrompt
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import model_setup
from modules.spec.registry import FAMILIES

INSTRUCTION = (
    "You are an assistant designed to generate superior images with the superior degree of image-text alignment "
    "based on textual prompts or user prompts. <Prompt Start> "
)
LAYER = -2


@model_setup
class Lumina2Setup(BaseModelSetup):
    """Negative prompts and dropped captions are encoded without the instruction."""

    spec = FAMILIES["LUMINA_2"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        texts = [
            prompt if not prompt or isinstance(prompt, NegativePrompt) else f"{INSTRUCTION}{prompt}"
            for prompt in prompts
        ]
        encoder, tokenizer = model.module("text_encoder"), model.parts["tokenizer"]
        hidden_BLE, mask_BL = causal_states(
            encoder, tokenizer, texts, self.prompt_length(model), layers=(LAYER,)
        )
        return Conditioning({"hidden_BLE": hidden_BLE, "mask_BL": mask_BL})

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        # this model counts time from noise to image, and its velocity has that direction
        out_BChw: torch.Tensor = model.denoiser(
            hidden_states=x_BChw,
            timestep=(1000.0 - t_B) / 1000.0,
            encoder_hidden_states=cond["hidden_BLE"].to(x_BChw.dtype),
            encoder_attention_mask=cond["mask_BL"],
            return_dict=False,
        )[0]
        return -out_BChw

    def guide(self, wanted_BChw: torch.Tensor, unwanted_BChw: torch.Tensor, cfg: float) -> torch.Tensor:
        """The guided prediction, with every row of the latents rescaled to its length in the prompt's prediction."""
        guided_BChw = super().guide(wanted_BChw, unwanted_BChw, cfg)
        lengths_BCh1: torch.Tensor = wanted_BChw.norm(dim=-1, keepdim=True) / guided_BChw.norm(
            dim=-1, keepdim=True
        )
        return torch.mul(guided_BChw, lengths_BCh1)

    def make_sampler(self, model: Model, name: object, steps: int, size: tuple[int, int]) -> Any:
        """Make a sampler. If noise levels are shifted by size, its pipeline counts the latent channels as tokens."""
        config = model.parts.get("scheduler")
        return make_sampler(model.schedule, name, steps, config, model.latent_channels, self.spec.even_steps)
