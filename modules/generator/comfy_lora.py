"""Puts a LoRA into a ComfyUI workflow: into the node that a person named, or after the nodes that load a model."""

from __future__ import annotations

from typing import Any

from modules.util.errors import ConfigError

LORA_NODE = "tastemaker-lora"
Graph = dict[str, Any]
_LOADERS = {"CheckpointLoaderSimple": (0, 1), "UNETLoader": (0,)}
"""Nodes that load a model, and their outputs that a LoRA changes: the model, then the text encoder."""
_SAMPLES = {"positive", "conditioning"}
"""Inputs that a node has next to its model if it makes images: a sampler, or the guider of one."""


def fill_lora(graph: Graph, place: tuple[str, str], name: str, strength: float) -> None:
    """Use a LoRA of the workflow's own node. Without a name, its strengths are 0, so that it changes nothing.

    Args:
        place: node and input that takes the LoRA's name.

    Raises:
        ConfigError: the node has no strength.
    """
    node, field = place
    inputs = graph[node]["inputs"]
    strengths = [
        one for one, value in inputs.items()
        if "strength" in one and isinstance(value, int | float) and not isinstance(value, bool)
    ]  # fmt: skip
    if not strengths or not isinstance(inputs[field], str):
        raise ConfigError(
            f"{node}.{field} is not the name of a LoRA in a node with a strength", "--slot lora",
            "name the input of a node that loads a LoRA, for example lora=10.lora_name",
        )  # fmt: skip
    inputs |= dict.fromkeys(strengths, strength if name else 0.0)
    if name:
        inputs[field] = name


def add_lora(graph: Graph, name: str, strength: float) -> None:
    """Insert a LoRA after every node that loads a model.

    Raises:
        ConfigError: there is none.
    """
    loaders = _loaders(graph)
    if not loaders:
        raise ConfigError(
            "the workflow has no node that loads a model", "--workflow",
            "use one with a checkpoint, or one with a LoRA that --slot lora=NODE.INPUT names",
        )  # fmt: skip
    for number, (key, outputs) in enumerate(loaders):
        lora = f"{LORA_NODE}-{number}"
        for node in graph.values():
            for field, value in node["inputs"].items():
                if isinstance(value, list) and len(value) == 2 and value[0] == key and value[1] in outputs:
                    node["inputs"][field] = [lora, outputs.index(value[1])]
        inputs: dict[str, Any] = {"lora_name": name, "strength_model": strength, "model": [key, outputs[0]]}
        if len(outputs) == 2:
            inputs |= {"strength_clip": strength, "clip": [key, outputs[1]]}
        kind = "LoraLoader" if len(outputs) == 2 else "LoraLoaderModelOnly"
        graph[lora] = {"class_type": kind, "inputs": inputs}


def _loaders(graph: Graph) -> list[tuple[str, tuple[int, ...]]]:
    """The nodes that load a model, with their outputs: ComfyUI's own, then those of extensions, from which a sampler
    gets its model.
    """
    known = [
        (key, _LOADERS[node["class_type"]]) for key, node in graph.items() if node.get("class_type") in _LOADERS
    ]
    names = dict(known)
    return known + [(key, (output,)) for key, output in _sources(graph).items() if key not in names]


def _sources(graph: Graph) -> dict[str, int]:
    """The nodes at which the models of all samplers begin, and their outputs."""
    waiting = [link for node in graph.values() for link in _models(node) if _SAMPLES & node["inputs"].keys()]
    found: dict[str, int] = {}
    seen = set[str]()
    while waiting:
        key, output = waiting.pop(0)
        if key in seen or key not in graph:
            continue
        seen.add(key)
        above = _models(graph[key])
        waiting += above
        if not above:
            found[key] = output
    return found


def _models(node: dict[str, Any]) -> list[tuple[str, int]]:
    """The links of a node to models (``model``, or ``model1`` and ``model2`` of a merger)."""
    return [
        (str(value[0]), value[1])
        for field, value in node["inputs"].items()
        if field.startswith("model") and isinstance(value, list) and len(value) == 2
    ]
