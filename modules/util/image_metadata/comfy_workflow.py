"""What the ComfyUI window saves (``workflow``), turned into a graph, for images that carry nothing else."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from modules.util.image_metadata.formats.comfy import read_graph
from modules.util.image_metadata.formats.comfy_values import Graph
from modules.util.image_metadata.formats.found import Found
from modules.util.image_metadata.limits import Reason, Unusable

_MUTED, _BYPASSED = 2, 4
_MAX_ITEMS = 20_000
_SEED_CONTROLS = ("fixed", "randomize", "increment", "decrement")
"""What stands behind a seed among the values of a node."""
_HEADS = {
    "CLIPTextEncodeSDXL": ("text_g", "text_l"),
    "CLIPTextEncodeFlux": ("clip_l", "t5xxl"),
    "CLIPTextEncodeSDXLRefiner": ("text",),
}


def is_workflow(data: Any) -> bool:
    """Whether parsed JSON is what the window saves."""
    nodes = data.get("nodes") if isinstance(data, dict) else None
    return isinstance(nodes, list) and any(isinstance(n, dict) and "type" in n for n in nodes)


def read_workflow(data: dict[str, Any]) -> Found | None:
    """Prompt, negative prompt and seed of a saved workflow.

    Raises:
        Unusable: too many nodes or links.
    """
    nodes, links = data["nodes"], data.get("links")
    links = links if isinstance(links, list) else []
    if len(nodes) > _MAX_ITEMS or len(links) > _MAX_ITEMS:
        raise Unusable(Reason.TEXT_TOO_LARGE, f"a workflow of {len(nodes)} nodes")
    origins = _origins(links)
    graph: Graph = {}
    for node in nodes:
        if isinstance(node, dict) and isinstance(node.get("type"), str) and node.get("mode") != _MUTED:
            graph[str(node.get("id"))] = {
                "class_type": node["type"],
                "inputs": _inputs(node, origins),
                "_meta": {"title": node.get("title")},
            }
    return read_graph(graph)


def _origins(links: list[Any]) -> dict[int, list[Any]]:
    """Link number -> [node, output number]."""
    origins: dict[int, list[Any]] = {}
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
            origins[link[0]] = [str(link[1]), link[2]]
    return origins


def _inputs(node: dict[str, Any], origins: dict[int, list[Any]]) -> dict[str, Any]:
    inputs: dict[str, Any] = {}
    named: list[str] = []
    slots = node.get("inputs")
    for slot in slots if isinstance(slots, list) else []:
        if not isinstance(slot, dict) or not isinstance(slot.get("name"), str):
            continue
        link = slot.get("link")
        if isinstance(link, int) and link in origins:
            inputs[slot["name"]] = origins[link]
        if isinstance(slot.get("widget"), dict):
            named.append(slot["name"])
    if node.get("mode") != _BYPASSED:
        _add_values(node, inputs, named)
    return inputs


def _add_values(node: dict[str, Any], inputs: dict[str, Any], named: list[str]) -> None:
    """Widget values under their names where those are known, else the texts among them under usual names."""
    values = node.get("widgets_values")
    if isinstance(values, dict):
        for name, value in values.items():
            inputs.setdefault(name, value)
        return
    if not isinstance(values, list):
        return
    kind = node["type"]
    texts = [value for value in values if isinstance(value, str)]
    if "Sampler" in kind or "Noise" in kind:
        inputs.setdefault("steps", 0)
        for value, control in pairwise(values):
            if control in _SEED_CONTROLS:
                inputs.setdefault("noise_seed" if "Noise" in kind else "seed", value)
        return
    if named and len(named) == len(values):
        for name, value in zip(named, values, strict=True):
            inputs.setdefault(name, value)
        return
    for name, text in zip(_HEADS.get(kind, ("text", "text_2", "text_3", "text_4")), texts, strict=False):
        inputs.setdefault(name, text)
