"""Sana: Gemma 2 text encoder, a linear-attention flow transformer, deep-compression autoencoder (32x)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.model.text.encoding import looked_up, tokenize
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import model_setup
from modules.spec.registry import FAMILIES


@model_setup
class SanaSetup(BaseModelSetup):
    """Prompts are lower-cased, without the instruction that some programs prepend for the language model."""

    spec = FAMILIES["SANA"]

    def _set_latents(self, model: Model) -> None:
        config: Any = model.vae.config
        model.latent_scale = float(config.scaling_factor)
        model.latent_factor = 2 ** (len(config.encoder_block_out_channels) - 1)
        model.latent_channels = int(config.latent_channels)

    def _words(self, prompt: str) -> str:
        return prompt.lower().strip()

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        encoder = model.module("text_encoder")
        tokenizer, added = self._tokenizer_of(model, "text_encoder")
        ids_BL, mask_BL = tokenize(tokenizer, prompts, encoder, self.prompt_length(model), side="right")
        with looked_up(encoder, ids_BL, added) as known_BL:
            hidden_BLE = encoder(known_BL, attention_mask=mask_BL.long())[0]
        if model.masks_padding is False:
            mask_BL = torch.ones_like(mask_BL)
        cond = Conditioning({"hidden_BLE": hidden_BLE, "mask_BL": mask_BL})
        return self._placed(model, cond, prompts, self.prompt_length(model), side="right")

    def _encode_image(self, model: Model, rgb_BCHW: torch.Tensor) -> torch.Tensor:
        return model.vae.encode(rgb_BCHW).latent  # type: ignore[operator, no-any-return]

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        config: Any = model.denoiser.config
        return model.denoiser(  # type: ignore[no-any-return]
            x_BChw,
            encoder_hidden_states=self.hidden_states(model, cond).to(x_BChw.dtype),
            encoder_attention_mask=cond["mask_BL"],
            timestep=t_B * config.timestep_scale,
            return_dict=False,
        )[0]
