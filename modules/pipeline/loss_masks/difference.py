"""Finds where the two images of a pair differ, as a mask that nobody has to paint."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from modules.pipeline.loss_masks.reading import Levels

VERSION = 1
"""Increased whenever the cells of the same images change."""
LEAST = 8
"""Colour differences up to this value (of 255) are noise, such as that of JPEG."""

Pixels = np.ndarray[Any, Any]


def differing_cells(chosen: Pixels, rejected: Pixels, factor: int, dilate: int) -> Levels:
    """(h, w) cells, 1 where the images differ and around it, else 0.

    A pixel differs if one of its colours differs by more than ``LEAST``. Single pixels are removed by an
    opening of radius 1. A cell counts if any pixel in it remains.

    Args:
        chosen, rejected: (H, W, 3) uint8, of one size.
        factor: side of a cell in pixels.
        dilate: number of cells by which the mask is dilated.
    """
    gap = np.abs(chosen.astype(np.int16) - rejected.astype(np.int16)).max(2) > LEAST
    grown = (
        Image.fromarray(gap.astype(np.uint8) * 255)
        .filter(ImageFilter.MinFilter(3))
        .filter(ImageFilter.MaxFilter(3))
    )
    height, width = gap.shape[0] // factor, gap.shape[1] // factor
    cells = np.asarray(grown).reshape(height, factor, width, factor).max((1, 3))
    if dilate:
        cells = np.asarray(Image.fromarray(cells).filter(ImageFilter.MaxFilter(2 * dilate + 1)))
    return np.asarray(cells > 0, dtype=np.float32)
