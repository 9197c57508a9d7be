"""Reads colour, shape, size, position and background back from pixels, and plays a person with a taste."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from scripts.demo.world import BACKGROUNDS, COLOURS, SHAPES, SIZE, Pixels, Wish, shape_mask

_FRAME = 2
_FOREGROUND_DISTANCE = 45.0
_MIN_PIXELS = 40
_TEMPLATE = 24


@dataclass(frozen=True)
class Reading:
    """The contents of an image. ``None`` where nothing recognisable is there.

    ``size`` is the square root of the bounding box area over the image's side, 0 to 1; ``x`` and ``y`` are the
    centre of the bounding box, 0 to 1 from the top left; ``brightness`` is relative to the
    full colour, 0 to 1;
    ``fit`` is the overlap (intersection over union) with the nearest ideal shape; ``warmth`` is the shape's red minus
    its blue, relative to its largest channel and to that of its colour's name, -2 to 2.
    """

    background: str
    shape: str | None
    colour: str | None
    size: float
    x: float
    y: float
    brightness: float
    fit: float
    warmth: float = 0.0


def _nearest_background(rgb: npt.NDArray[np.float64]) -> str:
    return min(BACKGROUNDS, key=lambda name: float(np.abs(rgb - np.array(BACKGROUNDS[name])).sum()))


def _nearest_colour(rgb: npt.NDArray[np.float64]) -> str:
    """Colour by hue and saturation; brightness is ignored."""
    scaled = rgb / max(float(rgb.max()), 1.0)

    def distance(name: str) -> float:
        ideal = np.array(COLOURS[name], dtype=np.float64)
        return float(np.abs(scaled - ideal / ideal.max()).sum())

    return min(COLOURS, key=distance)


@cache
def _template(shape: str) -> npt.NDArray[np.bool_]:
    return shape_mask(shape, _TEMPLATE / 2, _TEMPLATE / 2, _TEMPLATE / 2, _TEMPLATE) > 0.5


def _largest_component(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The largest 4-connected region (64x64: a flood fill is cheap enough)."""
    left = mask.copy()
    best = np.zeros_like(mask)
    while left.any():
        start = np.unravel_index(int(np.argmax(left)), left.shape)
        region = np.zeros_like(mask)
        region[start] = True
        while True:
            grown = region.copy()
            grown[1:] |= region[:-1]
            grown[:-1] |= region[1:]
            grown[:, 1:] |= region[:, :-1]
            grown[:, :-1] |= region[:, 1:]
            grown &= left
            if int(grown.sum()) == int(region.sum()):
                break
            region = grown
        left &= ~region
        if region.sum() > best.sum():
            best = region
    return best


def read_image(pixels: Pixels) -> Reading:
    """Judge pixels (64, 64, 3) uint8."""
    if pixels.shape != (SIZE, SIZE, 3):
        raise ValueError(f"the judge reads {SIZE}x{SIZE} RGB images, not {pixels.shape}")
    values = pixels.astype(np.float64)
    f = _FRAME
    frame = np.concatenate([values[:f].reshape(-1, 3), values[-f:].reshape(-1, 3), values[:, :f].reshape(-1, 3),
                            values[:, -f:].reshape(-1, 3)])  # fmt: skip
    back = np.median(frame, axis=0)
    background = _nearest_background(back)
    mask = _largest_component(np.abs(values - back).max(axis=2) > _FOREGROUND_DISTANCE)
    if int(mask.sum()) < _MIN_PIXELS:
        return Reading(background, None, None, 0.0, 0.5, 0.5, 0.0, 0.0)
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    top, bottom, left, right = int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1
    crop = mask[top:bottom, left:right]
    shape, fit = _best_shape(crop)
    inner = mask.copy()
    inner[1:] &= mask[:-1]
    inner[:-1] &= mask[1:]
    inner[:, 1:] &= mask[:, :-1]
    inner[:, :-1] &= mask[:, 1:]
    colour = np.median(values[inner if inner.sum() >= 8 else mask], axis=0)
    name = _nearest_colour(colour)
    return Reading(
        background,
        shape,
        name,
        float(np.sqrt((bottom - top) * (right - left)) / SIZE),
        (left + right) / 2 / SIZE,
        (top + bottom) / 2 / SIZE,
        float(colour.max() / max(COLOURS[name])),
        fit,
        _warmth(colour) - _warmth(np.array(COLOURS[name], dtype=np.float64)),
    )


def _warmth(rgb: npt.NDArray[np.float64]) -> float:
    return float((rgb[0] - rgb[2]) / max(float(rgb.max()), 1.0))


def _best_shape(crop: npt.NDArray[np.bool_]) -> tuple[str | None, float]:
    height, width = crop.shape
    if not 0.6 < height / width < 1.67:
        return None, 0.0
    rows = (np.arange(_TEMPLATE) * height // _TEMPLATE).astype(int)
    columns = (np.arange(_TEMPLATE) * width // _TEMPLATE).astype(int)
    scaled = crop[np.ix_(rows, columns)]
    overlap = {}
    for shape in SHAPES:
        ideal = _template(shape)
        overlap[shape] = float((scaled & ideal).sum() / (scaled | ideal).sum())
    best = max(overlap, key=lambda shape: overlap[shape])
    return (best, overlap[best]) if overlap[best] >= 0.6 else (None, overlap[best])


def matches(reading: Reading, wish: Wish) -> dict[str, bool]:
    """Return which of the properties that every caption names are in the image."""
    return {
        "colour": reading.colour == wish.colour,
        "shape": reading.shape == wish.shape,
        "background": reading.background == wish.background,
    }


def fidelity(readings: Sequence[Reading], wishes: Sequence[Wish]) -> dict[str, float]:
    """Share of images that match, per attribute and in ``all`` three at once."""
    rows = [matches(r, w) for r, w in zip(readings, wishes, strict=True)]
    made = {key: float(np.mean([row[key] for row in rows])) for key in ("colour", "shape", "background")}
    made["all"] = float(np.mean([all(row.values()) for row in rows]))
    return made
