from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from modules.pipeline.Item import Item
from modules.pipeline.Node import Node
from modules.pipeline.Rules import Rules


class ChoosePrompt(Node):
    """The prompt of a visit, augmented if the concept says so: ``prompt``.

    Args:
        rules: rules by the items' concept index.
        side: prefix of all names but ``name``.
        cached: whether text states are cached, so that variations take turns.
    """

    def __init__(self, rules: Sequence[Rules], side: str = "", cached: bool = True) -> None:
        super().__init__([f"{side}item", "name"], [f"{side}prompt"])
        self._rules, self._side, self._cached = rules, side, cached

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        item: Item = self._get_previous_item(variation, f"{self._side}item", index)
        name: str = self._get_previous_item(variation, "name", index)
        prompt = self._rules[item.concept].prompt(item.prompts, name, variation, self._cached)
        return {f"{self._side}prompt": prompt}
