"""Converts the ``workflow`` saved by the ComfyUI window into a graph, for images without one.

Subgraphs and group nodes are expanded. Names of inner nodes are prefixed by the box, as on the server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from modules.util.image_metadata.formats.comfy import read_graph
from modules.util.image_metadata.formats.comfy_groups import (
    as_list,
    group_definitions,
    inputs_by_place,
    values_of_members,
)
from modules.util.image_metadata.formats.comfy_values import is_link
from modules.util.image_metadata.formats.comfy_widgets import align, named_values
from modules.util.image_metadata.formats.found import Found
from modules.util.image_metadata.limits import Reason, Unusable

_MUTED, _BYPASSED = 2, 4
_MAX_ITEMS = 20_000
_MAX_NESTED = 12
_MAX_STEPS = 200_000
_OUTSIDE = -10
"""The node of a subgraph that represents the inputs of its box."""
_SET, _GET = (
    re.compile(r"(?:easy )?setNode\Z", re.IGNORECASE),
    re.compile(r"(?:easy )?getNode\Z", re.IGNORECASE),
)

Node: TypeAlias = dict[str, Any]


def is_workflow(data: Any) -> bool:
    """Return whether parsed JSON is a workflow saved by the window."""
    nodes = data.get("nodes") if isinstance(data, dict) else None
    return isinstance(nodes, list) and any(isinstance(n, dict) and "type" in n for n in nodes)


def read_workflow(data: dict[str, Any]) -> Found | None:
    """Read prompt, negative prompt and seed of a saved workflow.

    Raises:
        Unusable: there are too many nodes or links.
    """
    boxes = _Boxes(data)
    graph: dict[str, Any] = {}
    for name, node in _Scope(boxes, data, "", {}, 0).nodes_for_server():
        boxes.spend()
        graph[name] = node
    return read_graph(graph)


class _Boxes:
    """Definitions of subgraphs and group nodes, with a limit on how many may still be expanded."""

    def __init__(self, data: dict[str, Any]) -> None:
        definitions = data.get("definitions")
        listed = definitions.get("subgraphs") if isinstance(definitions, dict) else None
        groups = group_definitions(data)
        self.groups = frozenset(groups)
        self.inner: dict[str, dict[str, Any]] = dict(groups)
        for one in listed if isinstance(listed, list) else []:
            if (
                isinstance(one, dict)
                and isinstance(one.get("id"), str)
                and isinstance(one.get("nodes"), list)
            ):
                self.inner.setdefault(one["id"], one)
        self.left = _MAX_STEPS

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise Unusable(Reason.TEXT_TOO_LARGE, "a workflow with too many nodes in its subgraphs")


class _Scope:
    """The nodes of the workflow itself, or those in one box.

    Args:
        boxes: definitions of all boxes.
        content: ``nodes`` and ``links``.
        prefix: prefix of node names.
        fields: texts that fields on the box pass to inner nodes.
        depth: number of enclosing boxes.
    """

    def __init__(
        self,
        boxes: _Boxes,
        content: dict[str, Any],
        prefix: str,
        fields: dict[tuple[str, str], str],
        depth: int,
    ) -> None:
        nodes, links = as_list(content.get("nodes")), as_list(content.get("links"))
        if len(nodes) > _MAX_ITEMS or len(links) > _MAX_ITEMS:
            raise Unusable(Reason.TEXT_TOO_LARGE, f"a workflow of {len(nodes)} nodes")
        if depth > _MAX_NESTED:
            raise Unusable(Reason.TEXT_TOO_LARGE, "a workflow with too many nested subgraphs")
        boxes.spend(len(nodes) + len(links))
        self.boxes, self.content, self.prefix, self.fields, self.depth = boxes, content, prefix, fields, depth
        self.given: dict[int, Any] = {}
        """The connection of each input of the box: a link of the whole graph, or a value."""
        self.origins = _origins(links)
        self.nodes: dict[str, Node] = {
            str(node.get("id")): node
            for node in nodes
            if isinstance(node, dict) and isinstance(node.get("type"), str) and node.get("mode") != _MUTED
        }
        self._inner: dict[str, _Scope] = {}
        self._kept = {
            name: slot["link"]
            for node in self.nodes.values()
            if _SET.match(node["type"]) and (name := _only_text(node)) is not None
            for slot in _slots(node)
            if isinstance(slot.get("link"), int)
        }

    def nodes_for_server(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Names and nodes in the server's format, including those in boxes."""
        for name, node in self.nodes.items():
            if self._is_box(node):
                yield from self._inside(name, node).nodes_for_server()
                continue
            kind = "Bypassed" if node.get("mode") == _BYPASSED else node["type"]
            made = {"class_type": kind, "inputs": self._inputs(node), "_meta": {"title": node.get("title")}}
            yield self.prefix + name, made

    def origin(self, link: int, steps: int = 0) -> Any:
        """The origin of a link in this scope: a link of the whole graph, a value, or ``None``."""
        self.boxes.spend()
        start = self.origins.get(link)
        if start is None or steps > _MAX_NESTED:
            return None
        name, slot = start
        if name == str(_OUTSIDE):
            return self.given.get(slot)
        node = self.nodes.get(name)
        if node is None or not self._is_box(node):
            return [self.prefix + name, slot]
        return self._inside(name, node).output(slot, steps + 1)

    def output(self, slot: int, steps: int) -> Any:
        """Return the output of this box at a slot."""
        outputs = as_list(self.content.get("outputs"))
        one = outputs[slot] if 0 <= slot < len(outputs) else None
        links = as_list(one.get("linkIds") if isinstance(one, dict) else None)
        link = links[0] if links else None
        return self.origin(link, steps) if isinstance(link, int) else None

    def _is_box(self, node: Node) -> bool:
        return node["type"] in self.boxes.inner and node.get("mode") != _BYPASSED

    def _inside(self, name: str, node: Node) -> _Scope:
        """The scope of a box, created once."""
        scope = self._inner.get(name)
        if scope is None:
            content = self.boxes.inner[node["type"]]
            if node["type"] in self.boxes.groups:
                content = {**content, "nodes": values_of_members(content, _values(node))}
            scope = _Scope(self.boxes, content, f"{self.prefix}{name}:", _fields(node), self.depth + 1)
            self._inner[name] = scope
            scope.given = self._given(content, node)
        return scope

    def _given(self, content: dict[str, Any], node: Node) -> dict[int, Any]:
        """Inputs of a box: links, and values of inputs that have a field on the box."""
        slots = _slots(node)
        if node["type"] in self.boxes.groups:
            pairs = inputs_by_place(content, slots)
        else:
            named = {slot["name"]: slot for slot in slots}
            inner = content.get("inputs")
            names = [one.get("name") if isinstance(one, dict) else None for one in as_list(inner)]
            pairs = [
                (i, named[name]) for i, name in enumerate(names) if isinstance(name, str) and name in named
            ]
        values = align(
            [slot["name"] for slot in slots if isinstance(slot.get("widget"), dict)], _values(node)
        )
        given: dict[int, Any] = {}
        for number, slot in pairs:
            link = slot.get("link")
            value = self.origin(link) if isinstance(link, int) else (values or {}).get(slot["name"])
            if is_link(value) == isinstance(link, int):
                given[number] = value
        return given

    def _inputs(self, node: Node) -> dict[str, Any]:
        inputs: dict[str, Any] = {}
        named: list[str] = []
        for slot in _slots(node):
            link = slot.get("link")
            value = self.origin(link) if isinstance(link, int) else None
            if value is not None:
                inputs[slot["name"]] = value
            if isinstance(slot.get("widget"), dict):
                named.append(slot["name"])
        if _GET.match(node["type"]):
            kept = self._kept.get(_only_text(node) or "")
            return {"": self.origin(kept)} if kept is not None else {}
        if node.get("mode") == _BYPASSED or _SET.match(node["type"]):
            return inputs
        values = named_values(node, named, _makes_pictures(node, inputs))
        values |= {name: text for (owner, name), text in self.fields.items() if owner == str(node.get("id"))}
        for name, value in values.items():
            # A list as a value would be mistaken for a link.
            if not is_link(value):
                inputs.setdefault(name, value)
        return inputs


def _origins(links: list[Any]) -> dict[int, tuple[str, int]]:
    """Link number -> (node, output number)."""
    origins: dict[int, tuple[str, int]] = {}
    for link in links:
        if isinstance(link, dict):
            link = [link.get("id"), link.get("origin_id"), link.get("origin_slot")]
        if (
            isinstance(link, list)
            and len(link) >= 3
            and isinstance(link[0], int)
            and isinstance(link[1], int | str)
            and isinstance(link[2], int)
        ):
            origins[link[0]] = (str(link[1]), link[2])
    return origins


def _slots(node: Node) -> list[dict[str, Any]]:
    """The named inputs of a node."""
    return [
        slot
        for slot in as_list(node.get("inputs"))
        if isinstance(slot, dict) and isinstance(slot.get("name"), str)
    ]


def _values(node: Node) -> list[Any]:
    return as_list(node.get("widgets_values"))


def _only_text(node: Node) -> str | None:
    """The name under which a Set node stores its input for Get nodes."""
    values = _values(node)
    return values[0] if len(values) == 1 and isinstance(values[0], str) else None


def _makes_pictures(node: Node, inputs: dict[str, Any]) -> bool:
    kinds = [one.get("type") for one in as_list(node.get("outputs")) if isinstance(one, dict)]
    return kinds[:1] in (["IMAGE"], ["VIDEO"]) and not any(
        is_link(inputs.get(key)) for key in ("clip", "positive")
    )


def _fields(box: Node) -> dict[tuple[str, str], str]:
    """Texts that fields on a box pass to inner nodes (``proxyWidgets``), by node and name."""
    properties = box.get("properties")
    proxies = as_list(properties.get("proxyWidgets") if isinstance(properties, dict) else None)
    values = _values(box)
    if len(proxies) != len(values):
        return {}
    return {
        (str(proxy[0]), proxy[1]): value
        for proxy, value in zip(proxies, values, strict=True)
        if isinstance(proxy, list)
        and len(proxy) == 2
        and isinstance(proxy[1], str)
        and isinstance(value, str)
    }
