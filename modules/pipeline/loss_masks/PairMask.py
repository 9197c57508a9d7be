from __future__ import annotations

from typing import Any

import numpy as np
import torch

from modules.pipeline.cache.ContentCache import ContentCache
from modules.pipeline.cache.FileIndex import FileIndex
from modules.pipeline.Item import Item
from modules.pipeline.loss_masks.difference import VERSION, differing_cells
from modules.pipeline.loss_masks.MaskCells import MaskCells
from modules.pipeline.loss_masks.reading import Levels
from modules.pipeline.Node import Node
from modules.pipeline.nodes.CachedTensors import content_key
from modules.pipeline.nodes.transforms import Transform

SIDES = ("chosen_", "rejected_")


class PairMask(Node):
    """The weight of a pair by cell: ``pair_mask``, (h, w) float32 from 0 to 1.

    Args:
        of_files: reads the masks of both sides, whose union is used; ``None`` uses the areas in which the
            images differ.
        files: index of digests.
        factor: side of a cell in pixels.
        dilate: number of cells by which a difference is dilated.
        cache: cache of the masks; ``None`` computes them at every visit.
    """

    def __init__(
        self,
        of_files: MaskCells | None,
        files: FileIndex,
        factor: int,
        dilate: int,
        cache: ContentCache | None,
    ) -> None:
        super().__init__([f"{side}{name}" for side in SIDES for name in ("item", "transform", "pixels")], ["pair_mask"])
        self._of_files, self._files, self._factor = of_files, files, factor
        self._dilate, self._cache = dilate, cache

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        sides = self._sides(variation, index)
        key = self._key(sides)
        if self._cache is None or key not in self._cache:
            mask = self._make(sides, variation, index)
            if self._cache is None:
                return {"pair_mask": mask}
            self._cache.put(key, {"mask": torch.from_numpy(mask)})
        return {"pair_mask": self._cache.get(key)["mask"].numpy()}

    def _sides(self, visit: int, index: int) -> list[tuple[Item, Transform]]:
        return [
            (
                self._get_previous_item(visit, f"{side}item", index),
                self._get_previous_item(visit, f"{side}transform", index),
            )
            for side in SIDES
        ]

    def _key(self, sides: list[tuple[Item, Transform]]) -> str:
        if self._of_files is not None:
            size = sides[0][1].size
            return content_key(
                "pair masks",
                str(self._factor),
                repr(size),
                *(self._of_files.key(*side) or "" for side in sides),
            )
        told = [
            text for item, transform in sides for text in (self._files.content(item.path), transform.text())
        ]
        return content_key("difference", f"{VERSION} {self._factor} {self._dilate}", *told)

    def _make(self, sides: list[tuple[Item, Transform]], visit: int, index: int) -> Levels:
        if self._of_files is None:
            chosen, rejected = (self._get_previous_item(visit, f"{side}pixels", index) for side in SIDES)
            return differing_cells(chosen, rejected, self._factor, self._dilate)
        of_files = self._of_files
        made = [of_files.make(*side) for side in sides if of_files.key(*side) is not None]
        height, width = (length // self._factor for length in sides[0][1].size)
        return np.maximum.reduce(made) if made else np.ones((height, width), dtype=np.float32)
