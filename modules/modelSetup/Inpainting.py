"""Denoisers that inpaint: besides the noisy latents, they see a mask and the kept part of the image."""

from __future__ import annotations

import torch

from modules.model.batch import Conditioning
from modules.model.Model import Model
from modules.modelSetup.BaseModelSetup import BaseModelSetup


class Inpainting(BaseModelSetup):
    """A mixin for a family whose denoiser takes further channels. The family denoises all of them."""

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        seen_BChw = cond.tensors.get("inpaint_BChw")
        if seen_BChw is None:
            seen_BChw = self._nothing(model, size).expand(len(x_BChw), -1, -1, -1)
        seen_BChw = seen_BChw.to(x_BChw.device, x_BChw.dtype)
        return super().denoise(model, torch.cat([x_BChw, seen_BChw], dim=1), t_B, cond, size)  # type: ignore[safe-super]

    def _nothing(self, model: Model, size: tuple[int, int]) -> torch.Tensor:
        """The denoiser's extra input if the whole image is to be painted, (1, 1 + C, h, w): everything
        masked, and the latents of middle grey.
        """
        if size not in model._blank:
            grey_BCHW = torch.full((1, 3, *size), 0.5)
            with model.borrowed(self.spec.vae), torch.autocast(model.device.type, enabled=False):
                latents_BChw = self.encode_image(model, grey_BCHW).cpu()
            model._blank[size] = torch.cat([torch.ones_like(latents_BChw[:, :1]), latents_BChw], dim=1)
        return model._blank[size]
