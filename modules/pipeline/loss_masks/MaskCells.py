from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

from modules.pipeline.cache.ContentCache import ContentCache
from modules.pipeline.cache.FileIndex import FileIndex
from modules.pipeline.Item import Item
from modules.pipeline.loss_masks.aiming import shrunk
from modules.pipeline.loss_masks.finding import FoundMask
from modules.pipeline.loss_masks.reading import Levels, geometry_text, load_mask, mask_cells
from modules.pipeline.Node import Node
from modules.pipeline.nodes.CachedTensors import content_key
from modules.pipeline.nodes.transforms import Transform
from modules.util.rng import python_random


class MaskCells(Node):
    """The level of an image's mask in each latent cell at a visit: ``cells``, (h, w) float32 from 0 to 1, and
    whether the visit ignores the mask: ``ignored``.

    Args:
        masks: masks by item id; an item without one is white.
        files: index of sizes and digests.
        factor: side of a cell in pixels.
        alpha: whether masks are the alpha channels of the images.
        cache: cache of the cells; ``None`` computes them at every visit.
        ignored: probability that a visit treats the mask as white, determined by the seed, the item and the
            visit.
    """

    def __init__(
        self,
        masks: Mapping[str, FoundMask],
        files: FileIndex,
        factor: int,
        *,
        alpha: bool,
        cache: ContentCache | None,
        ignored: float,
        seed: int,
    ) -> None:
        super().__init__(["item", "transform", "name"], ["cells", "ignored"])
        self._masks, self._files, self._factor, self._alpha = masks, files, factor, alpha
        self._cache, self._ignored, self._seed = cache, ignored, seed

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        item: Item = self._get_previous_item(variation, "item", index)
        transform: Transform = self._get_previous_item(variation, "transform", index)
        name: str = self._get_previous_item(variation, "name", index)
        ignored = (
            self._ignored > 0
            and python_random("unmasked", self._seed, name, variation).random() < self._ignored
        )
        if requested_name == "ignored":
            return {"ignored": ignored}
        return {"cells": self._cells(item, transform, ignored), "ignored": ignored}

    def _cells(self, item: Item, transform: Transform, ignored: bool) -> Levels:
        cells = None if ignored else self.kept(item, transform)
        if cells is not None:
            return cells
        height, width = transform.size
        return np.ones((height // self._factor, width // self._factor), dtype=np.float32)

    def key(self, item: Item, transform: Transform) -> str | None:
        """Digest of the mask's content and transform; ``None`` for an image without a mask."""
        found = self._masks.get(item.id)
        if found is None:
            return None
        size = self._files.size(item.path)
        kind = "alpha" if self._alpha else "grey"
        return content_key(
            "mask",
            kind,
            self._files.digest(found.mask),
            repr(size),
            geometry_text(transform),
            str(self._factor),
        )

    def make(self, item: Item, transform: Transform) -> Levels:
        """Compute the cells of an image that has a mask, from its file.

        Raises:
            DataError: the file is damaged, or has changed.
        """
        path = self._masks[item.id].mask
        mask = load_mask(path, self._alpha)
        if transform.shrink:
            mask = Image.fromarray(shrunk(np.asarray(mask), transform.shrink), "F")
        made = mask_cells(mask, self._files.size(item.path), transform, self._factor)
        self._files.check_unchanged(path)
        return made

    def kept(self, item: Item, transform: Transform) -> Levels | None:
        """The cells of an image, from the cache if they are there; ``None`` without a mask."""
        key = self.key(item, transform)
        if key is None:
            return None
        if self._cache is None or key not in self._cache:
            return self.make(item, transform)
        cells: Levels = self._cache.get(key)["mask"].numpy()
        return cells

    def keep(self, item: Item, transform: Transform) -> None:
        """Add the cells to the cache unless they are there."""
        key = self.key(item, transform)
        if key is not None and self._cache is not None and key not in self._cache:
            self._cache.put(key, {"mask": torch.from_numpy(self.make(item, transform))})
