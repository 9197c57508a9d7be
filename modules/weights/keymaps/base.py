"""Tables of layer names: ours, and those of an original checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import nn


@dataclass(frozen=True)
class Original:
    """One layer of an original checkpoint.

    Args:
        name: dotted, without prefix.
        pieces: paths of our layers whose output rows, one after the other, are its rows; one for most.
        swapped: whether its two halves of rows (shift, scale) are in the other order here.
        weight: name of its weight.
        flat: whether all its numbers are in one row there.
    """

    name: str
    pieces: tuple[str, ...]
    swapped: bool = False
    weight: str = "weight"
    flat: bool = False

    @property
    def fused(self) -> bool:
        return len(self.pieces) > 1


class KeyMap(Protocol):
    """A naming scheme."""

    def original(self, module: nn.Module, path: str) -> Original:
        """The layer of the original checkpoint that ``path`` is, or is part of."""

    def in_adapter(self, module: nn.Module, path: str) -> Original:
        """The same layer under its name in adapter files."""


@dataclass(frozen=True)
class Rule:
    """Names of one layer; ``*`` stands for a number, the same on both sides.

    Args:
        original: its name in the checkpoint.
        ours: its path here, or the paths of its pieces in the order of their rows.
        swapped: see ``Original``; only where the layer has twice as many outputs as inputs, which those have
            that make one shift and one scale.
        weight: name of its weight in the checkpoint.
        flat: see ``Original``; of a tensor that belongs to no layer.
    """

    original: str
    ours: str | tuple[str, ...]
    swapped: bool = False
    weight: str = "weight"
    flat: bool = False


class Table:
    """A scheme made of rules. Layers without a rule keep their path."""

    def __init__(self, *rules: Rule) -> None:
        self._rules = [
            (_matcher(ours), rule)
            for rule in rules
            for ours in ((rule.ours,) if isinstance(rule.ours, str) else rule.ours)
        ]

    def original(self, module: nn.Module, path: str) -> Original:
        """See ``KeyMap``."""
        for matcher, rule in self._rules:
            if match := matcher.fullmatch(path):
                numbers = match.groups()
                ours = (rule.ours,) if isinstance(rule.ours, str) else rule.ours
                return Original(
                    _fill(rule.original, numbers),
                    tuple(_fill(piece, numbers) for piece in ours),
                    rule.swapped and _makes_pairs(module.get_submodule(path)),
                    rule.weight,
                    rule.flat,
                )
        return Original(path, (path,))

    def in_adapter(self, module: nn.Module, path: str) -> Original:
        """See ``KeyMap``."""
        return self.original(module, path)


def _matcher(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", r"(\d+)"))


def _fill(pattern: str, numbers: Sequence[str]) -> str:
    for number in numbers:
        pattern = pattern.replace("*", number, 1)
    return pattern


def _makes_pairs(layer: nn.Module) -> bool:
    layer = getattr(layer, "base_layer", layer)
    return getattr(layer, "out_features", 0) == 2 * getattr(layer, "in_features", 1)
