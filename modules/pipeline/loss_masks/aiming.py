"""Random transforms of an image with its mask: turn and crop to the mask, and keep a disc of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from modules.pipeline.loss_masks.reading import Levels
from modules.pipeline.nodes.transforms import Transform, turned
from modules.util.rng import python_random

WHITE = 0.5
"""Level from which a pixel counts as white."""
MOST_DEGREES = 20.0
PADDING = (0.1, 0.3)
"""Range of the margin around the mask on each side, relative to its box."""
REACH = (0.2, 1.0)
"""Range of a disc's radius, relative to the distance from its centre to the farthest white pixel."""

Points = Sequence[tuple[float, float]]


def outline(levels: Levels) -> list[tuple[float, float]]:
    """Corners (x, y) of the convex hull of a mask's white pixels, relative to its width and height; empty
    without white.
    """
    height, width = levels.shape
    white = levels >= WHITE
    rows = np.flatnonzero(white.any(1))
    first, last = white[rows].argmax(1), width - white[rows, ::-1].argmax(1)
    ends = np.concatenate([np.stack([x, rows + down], 1) for x in (first, last) for down in (0, 1)])
    points = [(int(x), int(y)) for x, y in np.unique(ends, axis=0)]
    return [(x / width, y / height) for x, y in _half_hull(points) + _half_hull(points[::-1])]


def _half_hull(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """One side of the hull of sorted points, without its last (Andrew 1979, the monotone chain)."""
    made: list[tuple[int, int]] = []
    for x, y in points:
        while len(made) > 1:
            (ax, ay), (bx, by) = made[-2:]
            if (bx - ax) * (y - ay) - (by - ay) * (x - ax) > 0:
                break
            made.pop()
        made.append((x, y))
    return made[:-1]


def aimed(
    transform: Transform,
    augment: Any,
    white: Points,
    image_size: tuple[int, int],
    least: float,
    keys: tuple[int, str, int],
) -> Transform:
    """Add a concept's random transforms of masked images to a transform.

    Args:
        augment: the concept's image settings.
        white: the mask's ``outline``.
        image_size: (width, height).
        least: minimum side of a crop relative to the result; 1 enlarges nothing.
        keys: seed of the concept, name of the item, variation.
    """
    if not white:
        return transform
    if augment.enable_random_circular_mask_shrink:
        source = python_random("augment/mask shrink", *keys)
        transform = replace(transform, shrink=(source.random(), source.uniform(*REACH)))
    if augment.enable_random_mask_rotate_crop:
        source = python_random("augment/mask crop", *keys)
        transform = replace(transform, angle=source.uniform(-MOST_DEGREES, MOST_DEGREES))
        padding = source.uniform(*PADDING)
        transform = replace(transform, focus=_focus(transform, white, image_size, least, padding))
    return transform


def _focus(
    transform: Transform, white: Points, image_size: tuple[int, int], least: float, padding: float
) -> tuple[float, float, float]:
    width, height = image_size
    target_h, target_w = transform.size
    angle = math.radians(transform.angle)
    seen = [
        turned(((1 - x if transform.flip else x) - 0.5) * width, (y - 0.5) * height, angle) for x, y in white
    ]
    (left, top), (right, bottom) = (
        tuple(edge(axis) for axis in zip(*seen, strict=True)) for edge in (min, max)
    )
    wanted = (1 + 2 * padding) * max((right - left) / target_w, (bottom - top) / target_h)
    x, y = turned((left + right) / 2, (top + bottom) / 2, -angle)
    largest = min(width / target_w, height / target_h)
    return x / width + 0.5, y / height + 0.5, min(1.0, max(wanted, least) / largest)


def shrunk(levels: Levels, shrink: tuple[float, float]) -> Levels:
    """A mask reduced to a disc.

    Args:
        shrink: which white pixel is its centre, and its radius relative to the distance to the farthest one.
    """
    white = levels >= WHITE
    # row by row, because the coordinates of all white pixels of a photo would take half a gigabyte per
    # thread
    counts = white.sum(1)
    ends = counts.cumsum()
    if not ends[-1]:
        return levels
    chosen = min(int(shrink[0] * int(ends[-1])), int(ends[-1]) - 1)
    y = int(np.searchsorted(ends, chosen, side="right"))
    x = int(np.flatnonzero(white[y])[chosen - int(ends[y] - counts[y])])
    lines = np.flatnonzero(counts)
    first, last = white[lines].argmax(1), levels.shape[1] - 1 - white[lines, ::-1].argmax(1)
    reach = int(((lines - y) ** 2 + np.maximum((first - x) ** 2, (last - x) ** 2)).max())
    rows, columns = np.ogrid[: levels.shape[0], : levels.shape[1]]
    inside = (columns - x) ** 2 <= math.floor(shrink[1] ** 2 * reach) - (rows - y) ** 2
    return np.where(inside, levels, np.float32(0))
