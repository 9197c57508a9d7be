"""Group nodes, the predecessor of subgraphs in the ComfyUI window."""

from __future__ import annotations

from typing import Any

_MAX_NODES = 1000


def group_definitions(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The group nodes of a workflow as subgraph definitions, by the types of their boxes."""
    extra = data.get("extra")
    groups = extra.get("groupNodes") if isinstance(extra, dict) else None
    found: dict[str, dict[str, Any]] = {}
    for name, group in groups.items() if isinstance(groups, dict) else ():
        if (
            isinstance(group, dict)
            and isinstance(group.get("nodes"), list)
            and len(group["nodes"]) <= _MAX_NODES
        ):
            content = _as_subgraph(group)
            found[f"workflow/{name}"] = found[f"workflow>{name}"] = content
    return found


def _as_subgraph(group: dict[str, Any]) -> dict[str, Any]:
    """Convert a group to a subgraph. Nodes are identified by their position in the group. Inputs without a
    source in the group, and outputs without a consumer in it, belong to the box, in node order.
    """
    links = [
        link for link in as_list(group.get("links")) if isinstance(link, list) and _are_numbers(link[:4], 4)
    ]
    fed = {(link[2], link[3]): number for number, link in enumerate(links)}
    taken = {(link[0], link[1]) for link in links}
    shown = {
        tuple(one[:2])
        for one in as_list(group.get("external"))
        if isinstance(one, list) and _are_numbers(one[:2], 2)
    }
    made: dict[str, Any] = {"nodes": [], "links": [], "inputs": [], "outputs": []}
    made["links"] = [[number, link[0], link[1]] for number, link in enumerate(links)]
    for place, node in enumerate(group["nodes"]):
        if not isinstance(node, dict):
            continue
        slots = []
        for at, slot in enumerate(as_list(node.get("inputs"))):
            if not isinstance(slot, dict):
                continue
            number = fed.get((place, at))
            if number is None:
                number = len(made["links"])
                made["links"].append([number, -10, len(made["inputs"])])
                made["inputs"].append({"name": slot.get("name"), "widget": slot.get("widget")})
            slots.append({**slot, "link": number})
        for at, _ in enumerate(as_list(node.get("outputs"))):
            if (place, at) not in taken or (place, at) in shown:
                number = len(made["links"])
                made["links"].append([number, place, at])
                made["outputs"].append({"linkIds": [number]})
        made["nodes"].append({**node, "id": place, "inputs": slots})
    return made


def as_list(value: Any) -> list[Any]:
    """A list of parsed JSON; anything else counts as empty."""
    return value if isinstance(value, list) else []


def _are_numbers(values: list[Any], count: int) -> bool:
    return len(values) == count and all(type(value) is int for value in values)


def values_of_members(group: dict[str, Any], values: list[Any]) -> list[dict[str, Any]]:
    """The nodes of a group with the values of a box, which lists the values of all nodes in sequence.

    Values in the definition are older than those of the box. If the counts do not match, there are no values.
    """
    nodes: list[dict[str, Any]] = group["nodes"]
    counts = [len(as_list(node.get("widgets_values"))) for node in nodes]
    if sum(counts) != len(values):
        return [{**node, "widgets_values": []} for node in nodes]
    made, start = [], 0
    for node, count in zip(nodes, counts, strict=True):
        made.append({**node, "widgets_values": values[start : start + count]})
        start += count
    return made


def inputs_by_place(group: dict[str, Any], slots: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """(index of the group's input, input of its box). Boxes rename inputs if two nodes have the same name."""
    inner = [number for number, one in enumerate(group["inputs"]) if not isinstance(one["widget"], dict)]
    outer = [slot for slot in slots if not isinstance(slot.get("widget"), dict)]
    return list(zip(inner, outer, strict=True)) if len(inner) == len(outer) else []
