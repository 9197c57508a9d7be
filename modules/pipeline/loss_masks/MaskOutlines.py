from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from modules.pipeline.cache.ContentCache import ContentCache
from modules.pipeline.cache.FileIndex import FileIndex
from modules.pipeline.Item import Item
from modules.pipeline.loss_masks.aiming import outline
from modules.pipeline.loss_masks.finding import FoundMask
from modules.pipeline.loss_masks.reading import load_mask
from modules.pipeline.nodes.CachedTensors import content_key

VERSION = "1"
"""Increased whenever the outline of the same mask changes."""


class MaskOutlines:
    """White areas of the masks of images. Each file is read once.

    Args:
        masks: masks by item id.
        files: index of digests.
        alpha: whether masks are the alpha channels of the images.
        cache: cache of the outlines; ``None`` keeps them for this run only.
    """

    def __init__(
        self, masks: Mapping[str, FoundMask], files: FileIndex, alpha: bool, cache: ContentCache | None
    ) -> None:
        self._masks, self._files, self._alpha, self._cache = masks, files, alpha, cache
        self._known: dict[str, Sequence[tuple[float, float]]] = {}

    def of(self, item: Item) -> Sequence[tuple[float, float]]:
        """As ``outline``; empty for an image without a mask.

        Raises:
            DataError: the file is damaged, or has changed.
        """
        found = self._masks.get(item.id)
        if found is None:
            return ()
        known = self._known.get(found.mask)
        if known is None:
            key = self._key(found.mask)
            kept = self._cache is not None and key in self._cache
            known = self._read(key) if kept else self._make(found.mask)
            self._known[found.mask] = known
        return known

    def keep(self, item: Item) -> None:
        """Add an image's outline to the cache unless it is there."""
        found = self._masks.get(item.id)
        if found is not None and self._cache is not None and self._key(found.mask) not in self._cache:
            points = torch.tensor(self.of(item), dtype=torch.float64).reshape(-1, 2)
            self._cache.put(self._key(found.mask), {"outline": points})

    def _key(self, path: str) -> str:
        kind = "alpha" if self._alpha else "grey"
        return content_key("mask outline", VERSION, kind, self._files.digest(path))

    def _read(self, key: str) -> Sequence[tuple[float, float]]:
        assert self._cache is not None
        return [(float(x), float(y)) for x, y in self._cache.get(key)["outline"]]

    def _make(self, path: str) -> Sequence[tuple[float, float]]:
        made = outline(np.asarray(load_mask(path, self._alpha)))
        self._files.check_unchanged(path)
        return made
