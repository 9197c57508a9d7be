from __future__ import annotations

from typing import Any

from modules.pipeline.cache.FileIndex import FileIndex
from modules.pipeline.Item import Item
from modules.pipeline.Node import Node
from modules.pipeline.nodes.images import load_rgb
from modules.pipeline.nodes.transforms import Transform, apply_transform


class LoadPixels(Node):
    """Decodes an image and applies its transform: ``pixels``, (H, W, 3) uint8.

    Args:
        files: index that checks whether the file is still the one of its digest.
        side: prefix of the names.
    """

    def __init__(self, files: FileIndex, side: str = "") -> None:
        super().__init__([f"{side}item", f"{side}transform"], [f"{side}pixels"])
        self._files, self._side = files, side

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        item: Item = self._get_previous_item(variation, f"{self._side}item", index)
        transform: Transform = self._get_previous_item(variation, f"{self._side}transform", index)
        pixels = apply_transform(load_rgb(item.path), transform)
        self._files.check_unchanged(item.path)
        return {f"{self._side}pixels": pixels}
