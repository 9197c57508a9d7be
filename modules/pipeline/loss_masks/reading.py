"""Reads masks: grey levels that say how much each part of an image is learned, from white (fully) to black
(not at all).
"""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
from PIL import Image

from modules.pipeline.nodes.images import load_upright
from modules.pipeline.nodes.transforms import Transform, crop_box

VERSION = 1
"""Increased whenever the cells of the same mask and transform change."""

Levels = np.ndarray[Any, np.dtype[np.float32]]


def load_mask(path: str | PathLike[str], alpha: bool = False) -> Image.Image:
    """Load an upright mask as an image of mode F with levels from 0 (black) to 1 (white).

    Colour and palette images are read as brightness (ITU-R 601), 16-bit images at full depth.

    Args:
        alpha: use the alpha channel, in which opaque means white.

    Raises:
        DataError: the file is damaged, truncated, or of a refused size.
    """
    return load_upright(path, _alpha_levels if alpha else _grey_levels)


def _alpha_levels(image: Image.Image) -> Image.Image:
    return _floating(np.asarray(image.convert("RGBA").getchannel("A")) / 255.0)


def _grey_levels(image: Image.Image) -> Image.Image:
    if image.mode == "1":
        return _floating(np.asarray(image))
    if image.mode.startswith("I;16"):
        return _floating(np.asarray(image) / 65535.0)
    if image.mode in ("I", "F"):
        return _floating(_scaled(np.asarray(image, dtype=np.float64)))
    return _floating(np.asarray(_opaque(image).convert("L")) / 255.0)


def _floating(levels: np.ndarray[Any, Any]) -> Image.Image:
    return Image.fromarray(levels.astype(np.float32).clip(0.0, 1.0), "F")


def _opaque(image: Image.Image) -> Image.Image:
    """Make transparent areas black."""
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        full = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", full.size, (0, 0, 0, 255)), full).convert("RGB")
    return image.convert("RGB") if image.mode == "P" else image


def _scaled(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    top = float(values.max(initial=0.0))
    white = next((level for level in (1.0, 255.0, 65535.0) if top <= level), top)
    return np.asarray(values / white)


def mask_cells(mask: Image.Image, size: tuple[int, int], transform: Transform, factor: int) -> Levels:
    """(h, w) mean levels of the cells that an image of ``size`` is encoded to after ``transform``.

    The mask is transformed like its image: flip, turn, crop, scale. Colour changes do not affect it.

    Args:
        mask: mask of mode F. Its size may differ from the image's, its shape must not.
        size: (width, height) of the image.
        factor: side of a cell in pixels.
    """
    if transform.flip:
        mask = mask.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if transform.angle:
        if mask.size != size:
            mask = mask.resize(size, Image.Resampling.BOX)
        mask = mask.rotate(transform.angle, Image.Resampling.BILINEAR)
    left, top, right, bottom = crop_box(size, transform)
    across, down = mask.width / size[0], mask.height / size[1]
    box = (left * across, top * down, min(right * across, mask.width), min(bottom * down, mask.height))
    height, width = transform.size
    cells = mask.resize((width // factor, height // factor), Image.Resampling.BOX, box=box)
    return np.asarray(cells, dtype=np.float32).clip(0.0, 1.0)


def geometry_text(transform: Transform) -> str:
    """A text that is equal for transforms that differ only in colours."""
    plain = replace(transform, brightness=1.0, contrast=1.0, saturation=1.0, hue=0.0)
    return f"{VERSION}:{plain.text()}" + (f":{plain.shrink!r}" if plain.shrink else "")
