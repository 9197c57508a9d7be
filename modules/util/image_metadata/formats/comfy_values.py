"""Graphs of ComfyUI as plain data."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeGuard

from modules.util.image_metadata.limits import Reason, Unusable

Graph: TypeAlias = dict[str, dict[str, Any]]
_MAX_STEPS = 100_000


class Budget:
    """Steps left for one graph."""

    __slots__ = ("left",)

    def __init__(self, steps: int = _MAX_STEPS) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        """Take steps.

        Raises:
            Unusable: none are left.
        """
        self.left -= steps
        if self.left < 0:
            raise Unusable(Reason.TEXT_TOO_LARGE, "a graph with too many ways through it")


def is_link(value: Any) -> TypeGuard[list[Any]]:
    """Whether an input comes from another node: ``[its name, output number]``."""
    return (
        type(value) is list
        and len(value) == 2
        and isinstance(value[0], str | int)
        and isinstance(value[1], int)
    )


def node_inputs(node: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a node, links and values."""
    inputs = node.get("inputs")
    return inputs if isinstance(inputs, dict) else {}


def node_type(node: dict[str, Any]) -> str:
    """The type of a node."""
    kind = node.get("class_type")
    return kind if isinstance(kind, str) else ""
