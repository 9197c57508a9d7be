from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from modules.pipeline.Item import Item
from modules.pipeline.Node import Node


class SourceItems(Node):
    """The first module of a pipeline of single images. Provides ``item`` and its ``name``."""

    def __init__(self, items: Sequence[Item]) -> None:
        super().__init__(outputs=["item", "name"])
        self._items = items

    def length(self) -> int:
        return len(self._items)

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        item = self._items[index]
        return {"item": item, "name": item.id}
