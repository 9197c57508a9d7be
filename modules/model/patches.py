"""Latents as sequences of 2 x 2 patches, for transformers."""

from __future__ import annotations

import logging

import torch
from torch import nn

from modules.model.memory import WRAPPED
from modules.model.Model import Model
from modules.util.errors import UnsupportedError

_log = logging.getLogger(__name__)


def pack(x_BChw: torch.Tensor, channels_last: bool = False) -> torch.Tensor:
    """(B, C, h, w) to (B, h/2 * w/2, C * 4), row by row.

    Args:
        channels_last: whether channels are innermost within a patch instead of outermost.
    """
    batch, channels, height, width = x_BChw.shape
    order = (0, 2, 4, 3, 5, 1) if channels_last else (0, 2, 4, 1, 3, 5)
    x = x_BChw.view(batch, channels, height // 2, 2, width // 2, 2).permute(order)
    return x.reshape(batch, (height // 2) * (width // 2), channels * 4)


def unpack(x_BLE: torch.Tensor, height: int, width: int, channels_last: bool = False) -> torch.Tensor:
    """The inverse of ``pack`` for latents of (height, width)."""
    batch, _, depth = x_BLE.shape
    inside = (2, 2, depth // 4) if channels_last else (depth // 4, 2, 2)
    order = (0, 5, 1, 3, 2, 4) if channels_last else (0, 3, 1, 4, 2, 5)
    x = x_BLE.view(batch, height // 2, width // 2, *inside).permute(order)
    return x.reshape(batch, depth // 4, height, width)


def grid_positions(height: int, width: int, device: torch.device) -> torch.Tensor:
    """(h * w, 3) positions of patches: zero, row and column."""
    ids = torch.zeros(height, width, 3, device=device)
    ids[..., -2] = torch.arange(height, device=device)[:, None]
    ids[..., -1] = torch.arange(width, device=device)[None, :]
    return ids.view(height * width, 3)


def wrap_edges(module: nn.Module) -> int:
    """Let the 2-d convolutions of a module see its opposite edge beyond each edge, as on a torus; how many do.

    Those of adapters count. A convolution that pads by hand, or along a third axis, stays as it is.
    """
    count = 0
    for layer in module.modules():
        padded = isinstance(layer, nn.Conv2d) and layer.padding != "valid" and any(layer.padding)
        if padded and isinstance(layer, nn.Conv2d):
            layer.padding_mode = "circular"
            count += 1
    before = str(getattr(module, "stored_as", ""))
    if count and WRAPPED not in before:
        # latents that are kept depend on it, and the weights do not tell
        module.stored_as = f"{before} {WRAPPED}".strip()  # type: ignore[assignment]
    return count


def wrap_model(model: Model) -> None:
    """``wrap_edges`` for the denoiser and the VAE.

    Raises:
        UnsupportedError: neither has such a convolution.
    """
    parts = [name for name in (model.spec.denoiser, model.spec.vae) if name in model.modules()]
    counts = {name: wrap_edges(model.module(name)) for name in parts}
    if sum(counts.values()) and not counts.get(model.spec.denoiser, 1):
        _log.warning(
            "force_circular_padding: only the VAE wraps its edges. The %s of %s has no convolution whose edges "
            "can be wrapped, so images may not tile",
            model.spec.denoiser,
            model.spec.label,
        )
    if not sum(counts.values()):
        raise UnsupportedError(
            f"no convolution of {model.spec.label} has edges that can be wrapped around",
            "force_circular_padding",
            "set it to false",
        )
