from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from modules.pipeline.cache.FileIndex import FileIndex
from modules.pipeline.Item import Item
from modules.pipeline.loss_masks.MaskOutlines import MaskOutlines
from modules.pipeline.Node import Node
from modules.pipeline.nodes.transforms import Transform, crop_geometry
from modules.pipeline.Rules import Rules


class PlanImage(Node):
    """Determines from an item's header and concept how the image is transformed: ``crop`` (height, width),
    ``transform`` and ``geometry`` (see ``crop_geometry``). Decodes nothing.

    Args:
        rules: rules by the items' concept index.
        files: index of the sizes.
        side: prefix of all names but ``name``, as in ``chosen_item``; empty for single images.
        cached: whether latents are cached, so that variations take turns.
        outlines: outlines of the images' masks, if there are masks.
    """

    def __init__(
        self,
        rules: Sequence[Rules],
        files: FileIndex,
        side: str = "",
        cached: bool = True,
        outlines: MaskOutlines | None = None,
    ) -> None:
        super().__init__([f"{side}item", "name"], [f"{side}{name}" for name in ("crop", "transform", "geometry")])
        self._outlines = outlines
        self._rules, self._files, self._side, self._cached = rules, files, side, cached

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        item: Item = self._get_previous_item(variation, f"{self._side}item", index)
        name: str = self._get_previous_item(variation, "name", index)
        crop, transform = self.plan(item, name, variation)
        return {
            f"{self._side}crop": crop,
            f"{self._side}transform": transform,
            f"{self._side}geometry": crop_geometry(self._files.size(item.path), transform),
        }

    def plan(self, item: Item, name: str, variation: int) -> tuple[tuple[int, int], Transform]:
        """``crop`` and ``transform`` of a visit, without a pipeline around it.

        Args:
            name: the item's id, or the pair's.
        """
        rules = self._rules[item.concept]
        size = self._files.size(item.path)
        crop = rules.crop(size, name, variation)
        transform = rules.transform(crop, name, variation, self._cached)
        if self._outlines is not None and rules.aims_at_masks:
            white = self._outlines.of(item)
            transform = rules.aim(transform, white, size, name, variation, self._cached)
        return crop, transform
