"""The autoencoder of Qwen-Image, made for videos. An image is a video of one frame."""

from __future__ import annotations

from typing import Any

import torch

from modules.model.Model import Model
from modules.modelSetup.BaseModelSetup import BaseModelSetup


class QwenAutoencoder(BaseModelSetup):
    """A base class of the families that use it."""

    def _set_latents(self, model: Model) -> None:
        config: Any = model.vae.config
        model.latent_factor = 2 ** len(config.temperal_downsample)
        model.latent_channels = int(config.z_dim)

    def _encode_image(self, model: Model, rgb_BCHW: torch.Tensor) -> torch.Tensor:
        vae: Any = model.vae
        z_BChw = vae.encode(rgb_BCHW.unsqueeze(2)).latent_dist.mode().squeeze(2).float()
        mean_C11, deviation_C11 = _statistics(model, z_BChw.device)
        scaled_BChw: torch.Tensor = (z_BChw - mean_C11) / deviation_C11
        return scaled_BChw

    def _decode(self, model: Model, z_BChw: torch.Tensor) -> torch.Tensor:
        vae: Any = model.vae
        mean_C11, deviation_C11 = _statistics(model, z_BChw.device)
        z_BCthw = (z_BChw.float() * deviation_C11 + mean_C11).to(z_BChw.dtype).unsqueeze(2)
        return vae.decode(z_BCthw).sample.squeeze(2)  # type: ignore[no-any-return]


def _statistics(model: Model, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of the autoencoder's raw latents, (C, 1, 1) each."""
    config: Any = model.vae.config
    mean_C, deviation_C = (torch.tensor(v, device=device) for v in (config.latents_mean, config.latents_std))
    return mean_C[:, None, None], deviation_C[:, None, None]
