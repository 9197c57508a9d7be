"""Aspect buckets: the size an image is cropped to, derived from its width and height alone.

All parts of the program (data loader, checks before a run, pair tool) use this module, so that images grouped
by the pair tool can be batched together in training. An image first gets a nominal aspect ratio, whatever the
resolution, then the size of that aspect ratio at the resolution.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

_STEPS = tuple(Fraction(quarters, 4) for quarters in (4, 5, 6, 7, 8, 10, 12, 14, 16))
ASPECTS: tuple[Fraction, ...] = tuple(sorted({1 / step for step in _STEPS} | set(_STEPS)))
"""Nominal width-to-height ratios, from 1:4 to 4:1."""

_LOGS = tuple(math.log(aspect) for aspect in ASPECTS)


def nearest_aspect(width: int, height: int) -> Fraction:
    """The nominal aspect ratio nearest to that of an image (on a log scale). A tie goes to the narrower one."""
    if width < 1 or height < 1:
        raise ValueError(f"an image of {width}x{height} has no aspect")
    wanted = math.log(width / height)
    return ASPECTS[min(range(len(ASPECTS)), key=lambda i: abs(_LOGS[i] - wanted))]


def aspect_label(width: int, height: int) -> str:
    """The name of an image's nominal aspect ratio: ``3:2`` for 1200x800."""
    aspect = nearest_aspect(width, height)
    return f"{aspect.numerator}:{aspect.denominator}"


def size_multiple(resolution: int, model_multiple: int = 8) -> int:
    """The number that bucket sides are multiples of: a sixteenth of the resolution, rounded to a power of two
    from 8 to 64, then to a multiple of what the model needs.
    """
    step = 8
    while step < 64 and step * 32 <= resolution:
        step *= 2
    return math.lcm(step, model_multiple)


@lru_cache(maxsize=4096)
def _bucket(aspect: Fraction, resolution: int, multiple: int) -> tuple[int, int]:
    ideal_w = resolution * math.sqrt(aspect)
    ideal_h = resolution / math.sqrt(aspect)

    def near(side: float) -> set[int]:
        low = max(multiple, int(side // multiple) * multiple)
        return {low, low + multiple}

    def distance(size: tuple[int, int]) -> tuple[float, int]:
        h, w = size
        error = abs(math.log(w / h / aspect)) + abs(math.log(w * h / resolution**2))
        return round(error, 9), h * w

    return min(((h, w) for h in near(ideal_h) for w in near(ideal_w)), key=distance)


@lru_cache(maxsize=65536)
def bucket_of(
    width: int, height: int, resolution: int, model_multiple: int = 8, bucketing: bool = True
) -> tuple[int, int]:
    """The (height, width) an image is scaled and cropped to.

    Args:
        width, height: size of the image as displayed, in pixels.
        resolution: side of the square whose area all buckets approximate.
        model_multiple: number of pixels that sides must be a multiple of.
        bucketing: ``False`` makes every image square.
    """
    aspect = nearest_aspect(width, height) if bucketing else Fraction(1)
    return _bucket(aspect, resolution, size_multiple(resolution, model_multiple))
