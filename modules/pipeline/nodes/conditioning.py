"""Pictures shown to inpainting models instead of the masked image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PIL import Image

from modules.pipeline.cache.FileIndex import FileIndex
from modules.pipeline.Item import Item
from modules.pipeline.Node import Node
from modules.pipeline.nodes.images import load_rgb
from modules.pipeline.nodes.masks import CellMask, Mask
from modules.pipeline.nodes.transforms import Pixels, Transform, apply_transform


class PlanCondition(Node):
    """The picture shown at a visit: ``condition``, its path. Empty if the masked image is shown, which is
    blank if everything is to be painted.

    Args:
        conditions: paths by item id.
        ignored: whether the visits that ignore masks are known; otherwise masks are drawn.
        side: prefix of the names.
    """

    def __init__(self, conditions: Mapping[str, str], ignored: bool, side: str) -> None:
        super().__init__([f"{side}item", f"{side}{'ignored' if ignored else 'mask'}"], [f"{side}condition"])
        self._conditions, self._side = conditions, side

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        item: Item = self._get_previous_item(variation, f"{self._side}item", index)
        said: bool | Mask | CellMask = self._get_previous_item(variation, self._inputs[1], index)
        blank = said.whole if isinstance(said, Mask) else said is True
        return {f"{self._side}condition": "" if blank else self._conditions.get(item.id, "")}


class LoadCondition(Node):
    """Decodes the picture shown at a visit: ``condition_pixels``, or ``None``.

    Args:
        files: index of the sizes.
        side: prefix of the names.
    """

    def __init__(self, files: FileIndex, side: str) -> None:
        super().__init__([f"{side}{name}" for name in ("item", "transform", "condition")], [f"{side}condition_pixels"])
        self._files, self._side = files, side

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        item, transform, path = (self._get_previous_item(variation, name, index) for name in self._inputs)
        made = load_condition(path, item, transform, self._files) if path else None
        return {f"{self._side}condition_pixels": made}


def load_condition(path: str, item: Item, transform: Transform, files: FileIndex) -> Pixels:
    """Load (H, W, 3) pixels of a picture with its image's transform applied.

    Raises:
        DataError: the file is damaged, or has changed.
    """
    picture, size = load_rgb(path), files.size(item.path)
    if picture.size != size:
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    made = apply_transform(picture, transform)
    files.check_unchanged(path)
    return made
