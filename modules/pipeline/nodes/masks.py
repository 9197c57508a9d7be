"""Masks for inpainting models: the hidden part of an image, determined before it is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from modules.pipeline.Node import Node
from modules.pipeline.nodes.transforms import Pixels
from modules.util.rng import python_random

VERSION = 1
"""Increased whenever the same ``Mask`` covers other pixels than before."""
WHOLE = 0.25
"""Share of masks that cover the whole image, as in sampling without an image."""
EVERYTHING = (0.0, 0.0, 1.0, 1.0)
GREY = 127.5
HALF = 0.5

Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Mask:
    """The area to paint: boxes (top, left, bottom, right) relative to height and width."""

    boxes: tuple[tuple[float, float, float, float], ...]

    def text(self) -> str:
        """A text that is equal for equal masks, on every machine."""
        return f"{VERSION}:{self.boxes!r}"

    @property
    def whole(self) -> bool:
        """True if it covers the whole image."""
        return self.boxes == (EVERYTHING,)

    def cells(self, height: int, width: int) -> Bools:
        """(h, w) covered cells. Every box covers at least one."""
        covered = np.zeros((height, width), dtype=np.bool_)
        for top, left, bottom, right in self.boxes:
            first_y, first_x = min(int(top * height), height - 1), min(int(left * width), width - 1)
            last_y, last_x = max(round(bottom * height), first_y + 1), max(round(right * width), first_x + 1)
            covered[first_y:last_y, first_x:last_x] = True
        return covered

    def hide(self, pixels: Pixels, factor: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """(H, W, 3) pixels from 0 to 255 with the covered cells of ``factor`` pixels in middle grey."""
        height, width = pixels.shape[:2]
        return _hidden(pixels, self.cells(height // factor, width // factor), factor)


@dataclass(frozen=True, slots=True, eq=False)
class CellMask:
    """The area to paint, cell by cell: (h, w), true where the mask of an image is at least half white."""

    covered: Bools

    def text(self) -> str:
        """A text that is equal for equal masks, on every machine."""
        return f"{VERSION}:{self.covered.shape}:{np.packbits(self.covered).tobytes().hex()}"

    def cells(self, height: int, width: int) -> Bools:
        """(h, w) covered cells. Raises ``ValueError`` for another size than the mask's."""
        if (height, width) != self.covered.shape:
            raise ValueError(f"a mask of {self.covered.shape} cells for an image of {(height, width)}")
        return self.covered

    def hide(self, pixels: Pixels, factor: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """As ``Mask.hide``."""
        return _hidden(pixels, self.covered, factor)


def _hidden(pixels: Pixels, cells: Bools, factor: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    covered = cells.repeat(factor, 0).repeat(factor, 1)
    return np.where(covered[..., None], np.float32(GREY), pixels.astype(np.float32))


def decide_mask(name: str, number: int) -> Mask:
    """The ``number``-th mask of an image or pair: the whole image, or one to three boxes.

    Args:
        name: the item's id, or the pair's, so that both sides have the same.
    """
    source = python_random("inpainting mask", 0, name, number)
    if source.random() < WHOLE:
        return Mask((EVERYTHING,))
    boxes = []
    for _ in range(source.randint(1, 3)):
        height, width = source.uniform(0.2, 0.8), source.uniform(0.2, 0.8)
        top, left = source.uniform(0.0, 1.0 - height), source.uniform(0.0, 1.0 - width)
        boxes.append((top, left, top + height, left + width))
    return Mask(tuple(boxes))


class PlanMask(Node):
    """Determines what is masked at a visit: ``mask``.

    Args:
        side: prefix of its name.
        count: number of masks that an item uses in turn; 0 for a new one at every visit.
    """

    def __init__(self, side: str, count: int) -> None:
        super().__init__(["name"], [f"{side}mask"])
        self._side, self._count = side, count

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        name: str = self._get_previous_item(variation, "name", index)
        number = variation % self._count if self._count else variation
        return {f"{self._side}mask": decide_mask(name, number)}


class MaskFromCells(Node):
    """Uses an image's mask file as the area to paint: ``mask``. A white mask covers the whole image.

    Args:
        side: prefix of the names.
    """

    def __init__(self, side: str) -> None:
        super().__init__([f"{side}cells"], [f"{side}mask"])
        self._side = side

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        cells = self._get_previous_item(variation, f"{self._side}cells", index)
        return {f"{self._side}mask": CellMask(cells >= HALF)}
