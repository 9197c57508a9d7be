"""Stable Diffusion 1, 2 and XL: the UNet of latent diffusion."""

from __future__ import annotations

from torch import nn

from modules.weights.keymaps.base import Original
from modules.weights.ldm_keys import unet_to_ldm

LAYERS = 2
"""Layers per block of the published models."""


class LatentDiffusion:
    """The position of a layer depends on how many layers a block has and which blocks have attention."""

    def original(self, module: nn.Module, path: str) -> Original:
        """See ``KeyMap``."""
        return Original(_name(module, path, _layers(module)), (path,))

    def in_adapter(self, module: nn.Module, path: str) -> Original:
        """See ``KeyMap``."""
        return Original(ldm_name(module, path), (path,))


def ldm_name(unet: nn.Module, path: str) -> str:
    """The latent-diffusion name of a UNet layer in adapters. Other programs count positions as in the
    published models, even if a block has fewer layers.
    """
    return _name(unet, path, max(_layers(unet), LAYERS))


def _layers(unet: nn.Module) -> int:
    return int(unet.config.layers_per_block)  # type: ignore[union-attr, arg-type]


def _name(unet: nn.Module, path: str, layers: int) -> str:
    attention = tuple("Attn" in kind for kind in unet.config.up_block_types)  # type: ignore[union-attr]
    return unet_to_ldm(path, layers, attention)


KEY_MAP = LatentDiffusion()
