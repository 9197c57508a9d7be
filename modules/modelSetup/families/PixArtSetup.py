"""PixArt: T5 text encoder and a diffusion transformer with cross-attention; epsilon prediction with learnt variance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.ModelFamily import widen_vae
from modules.modelSetup.registry import model_setup
from modules.spec.registry import FAMILIES

SIZE_AWARE_SAMPLE = 128
"""Latent size of the models that are given resolution and aspect ratio."""


@model_setup
class PixArtAlphaSetup(BaseModelSetup):
    """Prompts are lower-cased."""

    spec = FAMILIES["PIXART_ALPHA"]

    def _words(self, prompt: str) -> str:
        return prompt.lower().strip()

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        hidden_BLE, mask_BL = self._t5_states(model, "text_encoder", prompts, masked=True)
        if model.masks_padding is False:
            mask_BL = torch.ones_like(mask_BL)
        cond = Conditioning({"hidden_BLE": hidden_BLE, "mask_BL": mask_BL})
        return self._placed(model, cond, prompts, self.prompt_length(model))

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        # the other half is the variance, which the samplers do not use
        return self.denoise_with_variance(model, x_BChw, t_B, cond, size)[0]

    def denoise_with_variance(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        config: Any = model.denoiser.config
        known: dict[str, torch.Tensor | None] = {"resolution": None, "aspect_ratio": None}
        if config.sample_size == SIZE_AWARE_SAMPLE:
            shape = torch.tensor(size, device=x_BChw.device, dtype=x_BChw.dtype)
            known["resolution"] = shape.repeat(len(x_BChw), 1)
            known["aspect_ratio"] = (shape[:1] / shape[1:]).repeat(len(x_BChw), 1)
        out_BChw = model.denoiser(
            x_BChw,
            encoder_hidden_states=self.hidden_states(model, cond).to(x_BChw.dtype),
            encoder_attention_mask=cond["mask_BL"].to(x_BChw.dtype),
            timestep=t_B,
            added_cond_kwargs=known,
            return_dict=False,
        )[0]
        channels = x_BChw.shape[1]
        variance_BChw = out_BChw[:, channels:] if out_BChw.shape[1] == 2 * channels else None
        return out_BChw[:, :channels], variance_BChw


@model_setup
class PixArtSigmaSetup(PixArtAlphaSetup):
    """Longer prompts, another autoencoder."""

    spec = FAMILIES["PIXART_SIGMA"]

    def _set_latents(self, model: Model) -> None:
        super()._set_latents(model)
        # the autoencoder is that of Stable Diffusion XL, whose config may name a shift this family never applies
        model.latent_shift = 0.0
        widen_vae(model)
