"""Stable Diffusion 1, 2 and XL: the UNet of latent diffusion."""

from __future__ import annotations

from torch import nn

from modules.adapter.keymaps.base import Original
from modules.model.ldm_keys import unet_to_ldm


class LatentDiffusion:
    """Where a layer lies depends on how many layers a block has and which blocks have attention."""

    def original(self, module: nn.Module, path: str) -> Original:
        """See ``KeyMap``."""
        return Original(ldm_name(module, path), (path,))


def ldm_name(unet: nn.Module, path: str) -> str:
    """The latent-diffusion name of a layer of a UNet."""
    config = unet.config
    attention = tuple("Attn" in kind for kind in config.up_block_types)  # type: ignore[union-attr]
    return unet_to_ldm(path, config.layers_per_block, attention)  # type: ignore[union-attr, arg-type]


KEY_MAP = LatentDiffusion()
