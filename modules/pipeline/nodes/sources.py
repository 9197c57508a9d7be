"""Source images of edits, whose transform follows from that of their result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from modules.pipeline.cache.FileIndex import FileIndex
from modules.pipeline.Item import Item
from modules.pipeline.Node import Node
from modules.pipeline.nodes.images import load_rgb
from modules.pipeline.nodes.transforms import Pixels, Transform, apply_transform
from modules.pipeline.Rules import Rules
from modules.util.bucket import bucket_of

if TYPE_CHECKING:  # it needs torch
    from modules.pipeline.cache.ContentCache import ContentCache

ALIKE = 0.02
"""Tolerance of the logarithms of two aspect ratios for images to be cropped together."""
MOST_PIXELS = 1024**2
"""Maximum area of sources for editing models (Batifol et al. 2025, arXiv 2506.15742, section 3)."""


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """One source image and its transform."""

    path: str
    transform: Transform


def same_aspect(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether two (width, height) have the same shape, apart from rounding and a few rows of pixels.
    """
    return abs(math.log(one[0] / one[1]) - math.log(other[0] / other[1])) <= ALIKE


def source_size(
    source: tuple[int, int],
    result: tuple[int, int],
    crop: tuple[int, int],
    multiple: int,
    resolution: int | None = None,
) -> tuple[int, int]:
    """(height, width) that a source is scaled and cropped to: that of the result if both have the same shape,
    else its own bucket of the result's area; at most one megapixel.

    Args:
        source, result: (width, height) of the files.
        crop: (height, width) of the result's bucket.
        multiple: number of pixels that sides must be a multiple of.
        resolution: side of a square of the area that a source has; ``None`` for that of the result.
    """
    alike, pixels = same_aspect(source, result), crop[0] * crop[1]
    if alike and resolution is None and pixels <= MOST_PIXELS:
        return crop
    width, height = (crop[1], crop[0]) if alike else source
    wanted = pixels if resolution is None else resolution**2
    return bucket_of(width, height, round(math.sqrt(min(wanted, MOST_PIXELS))), multiple)


def plan_sources(item: Item, files: FileIndex, transform: Transform, rules: Rules) -> tuple[SourcePlan, ...]:
    """Transforms of the sources of an item whose result has ``transform``: the same, with a centred crop if a
    source has another shape.
    """
    result, plans = files.size(item.source_like or item.path), []
    for path in item.sources:
        own = files.size(path)
        size = source_size(own, result, transform.size, rules.multiple, rules.source_resolution)
        offset = transform.offset if same_aspect(own, result) else (0.5, 0.5)
        focus = transform.focus if same_aspect(own, result) else None
        plans.append(SourcePlan(path, replace(transform, size=size, offset=offset, focus=focus)))
    return tuple(plans)


def load_source(plan: SourcePlan, files: FileIndex) -> Pixels:
    """Load (H, W, 3) pixels of a source, uint8."""
    pixels = apply_transform(load_rgb(plan.path), plan.transform)
    files.check_unchanged(plan.path)
    return pixels


class PlanSources(Node):
    """Determines the transforms of source images: ``sources``, a tuple of ``SourcePlan``.

    Args:
        rules: rules by the items' concept index.
        files: index of the sizes.
        side: prefix of the names.
    """

    def __init__(self, rules: Sequence[Rules], files: FileIndex, side: str = "") -> None:
        super().__init__([f"{side}item", f"{side}transform"], [f"{side}sources"])
        self._rules, self._files, self._side = rules, files, side

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        item: Item = self._get_previous_item(variation, f"{self._side}item", index)
        transform: Transform = self._get_previous_item(variation, f"{self._side}transform", index)
        plans = plan_sources(item, self._files, transform, self._rules[item.concept])
        return {f"{self._side}sources": plans}


class LoadSources(Node):
    """Decodes source images: ``source_pixels``, a list of (H, W, 3) uint8.

    Args:
        files: index that checks whether a file is still the one of its digest.
        side: prefix of the names.
    """

    def __init__(self, files: FileIndex, side: str = "") -> None:
        super().__init__([f"{side}sources"], [f"{side}source_pixels"])
        self._files, self._side = files, side

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        plans: Sequence[SourcePlan] = self._get_previous_item(variation, f"{self._side}sources", index)
        return {f"{self._side}source_pixels": [load_source(plan, self._files) for plan in plans]}


class CachedSources(Node):
    """Looks up the latents of source images: ``source_keys`` and ``source_latents``, a tensor each.

    Args:
        key: computes the key of a source.
        cache: holds the entries.
        side: prefix of the names.
    """

    def __init__(self, key: Callable[[SourcePlan], str], cache: ContentCache, side: str = "") -> None:
        super().__init__([f"{side}sources"], [f"{side}source_keys", f"{side}source_latents"])
        self._key, self._cache, self._side = key, cache, side

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        plans: Sequence[SourcePlan] = self._get_previous_item(variation, f"{self._side}sources", index)
        keys = [self._key(plan) for plan in plans]
        if requested_name == f"{self._side}source_keys":
            return {requested_name: keys}
        latents = [self._cache.get(key)["latents"] for key in keys]
        return {f"{self._side}source_keys": keys, f"{self._side}source_latents": latents}
