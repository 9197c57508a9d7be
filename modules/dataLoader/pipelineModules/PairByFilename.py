from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from modules.dataLoader.pairing import Pair
from modules.pipeline.Node import Node


class PairByFilename(Node):
    """The first module of a pipeline of pairs: images of a chosen and a rejected concept, matched by their path
    below the concept folder without extension.

    Gives ``chosen_item``, ``rejected_item``, ``name``, the pair's id, and ``there``, which sides have an image. The
    matching and everything that can be wrong with it are in ``modules.dataLoader.pairing``, which also works before
    there is a pipeline.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        super().__init__(outputs=["name", "there", "chosen_item", "rejected_item"])
        self._pairs = pairs

    def length(self) -> int:
        return len(self._pairs)

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        pair = self._pairs[index]
        return {
            "name": pair.id,
            "there": pair.sides,
            "chosen_item": pair.chosen,
            "rejected_item": pair.rejected,
        }
