"""The autoencoder of FLUX.2, whose latents are normalised in patches of 2 x 2."""

from __future__ import annotations

from typing import Any

import torch

from modules.model.Model import Model
from modules.model.patches import pack, unpack
from modules.modelSetup.BaseModelSetup import BaseModelSetup


class Flux2Autoencoder(BaseModelSetup):
    """A base class of the families that use it."""

    variance_floor: float | None = None
    """Added to the variances of the patches; ``None`` means the value in the autoencoder's config."""

    channels_last = False
    """True if channels are innermost within a patch, including in the statistics."""

    def _set_latents(self, model: Model) -> None:
        config: Any = model.vae.config
        # the denoiser's latents are 2 x 2 patches of the autoencoder's
        model.latent_factor = 2 ** len(config.block_out_channels)
        model.latent_channels = 4 * int(config.latent_channels)

    def _encode_image(self, model: Model, rgb_BCHW: torch.Tensor) -> torch.Tensor:
        z_BChw = super()._encode_image(model, rgb_BCHW).float()
        height, width = (side // 2 for side in z_BChw.shape[-2:])
        patches_BChw = pack(z_BChw, self.channels_last).transpose(1, 2).unflatten(2, (height, width))
        mean_C11, deviation_C11 = self._statistics(model)
        scaled_BChw: torch.Tensor = (patches_BChw - mean_C11) / deviation_C11
        return scaled_BChw

    def _decode(self, model: Model, z_BChw: torch.Tensor) -> torch.Tensor:
        mean_C11, deviation_C11 = self._statistics(model)
        patches_BChw = z_BChw.float() * deviation_C11 + mean_C11
        height, width = (2 * side for side in z_BChw.shape[-2:])
        patches_BLE = patches_BChw.flatten(2).transpose(1, 2)
        raw_BChw = unpack(patches_BLE, height, width, self.channels_last)
        return super()._decode(model, raw_BChw.to(z_BChw.dtype))

    def _statistics(self, model: Model) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of the patches of the autoencoder's raw latents, (C, 1, 1) each."""
        vae: Any = model.vae
        floor = vae.config.batch_norm_eps if self.variance_floor is None else self.variance_floor
        deviation_C = (vae.bn.running_var.float() + floor).sqrt()
        return vae.bn.running_mean.float()[:, None, None], deviation_C[:, None, None]
