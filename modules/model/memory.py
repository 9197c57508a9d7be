"""Frees device memory."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

MOST_PIXELS = 3 << 19
"""1.5 megapixels: images up to this size are handled whole."""
TILE, STRIDE = 1024, 768
"""Sides of a tile in pixels, and from the start of one to that of the next; where two overlap, they are blended."""
WRAPPED = "circular padding"
"""The value of ``stored_as`` for a module whose edges are wrapped."""
_FULL = re.compile(r"DefaultCPUAllocator: .*memory|std::bad_alloc|[Cc]annot allocate memory")
_SETTINGS = (
    "use_tiling",
    "tile_sample_min_size",
    "tile_latent_min_size",
    "tile_overlap_factor",
    *(f"tile_{kind}_height" for kind in ("sample_min", "sample_stride", "latent_min")),
    *(f"tile_{kind}_width" for kind in ("sample_min", "sample_stride", "latent_min")),
)
"""The attributes with which diffusers' autoencoders describe their tiling."""


def tiling(vae: nn.Module, size: tuple[int, int]) -> str:
    """Describe how an autoencoder handles images of one size, for keys of caches; empty if it takes them whole.

    One whose edges are wrapped takes all images whole, because a tile would be wrapped around itself.

    Args:
        size: (height, width) in pixels.
    """
    if size[0] * size[1] <= MOST_PIXELS or not hasattr(vae, "use_tiling"):
        return ""
    return "" if WRAPPED in str(getattr(vae, "stored_as", "")) else f"tiles {TILE}/{STRIDE}"


def is_memory_full(error: BaseException) -> bool:
    """Return whether a library raised an error because the computer's own memory is full."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return _FULL.search(str(error)) is not None


def give_back(device: torch.device) -> None:
    """Return PyTorch's cached memory to the device, for other sizes and other programs."""
    empty = getattr(getattr(torch, device.type, None), "empty_cache", None)
    if empty is not None:
        empty()


@contextmanager
def in_tiles_if_large(vae: nn.Module, size: tuple[int, int]) -> Iterator[None]:
    """The block in which an autoencoder encodes or decodes images of one size: in tiles above ``MOST_PIXELS``, if it
    can do that.

    Args:
        size: (height, width) in pixels.
    """
    if not tiling(vae, size):
        yield
        return
    usual = {name: getattr(vae, name) for name in _SETTINGS if hasattr(vae, name)}
    try:
        _tile(vae)
        yield
    finally:
        for name, value in usual.items():
            setattr(vae, name, value)


def _tile(vae: Any) -> None:
    if hasattr(vae, "tile_sample_stride_height"):
        vae.enable_tiling(TILE, TILE, STRIDE, STRIDE)
        return
    vae.enable_tiling()
    vae.tile_sample_min_size = TILE
    vae.tile_latent_min_size = TILE >> (len(vae.config.block_out_channels) - 1)
    vae.tile_overlap_factor = 1.0 - STRIDE / TILE
