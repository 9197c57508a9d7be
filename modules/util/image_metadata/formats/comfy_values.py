"""Graphs of ComfyUI as plain data."""

from __future__ import annotations

import re
from typing import Any, TypeAlias, TypeGuard

from modules.util.image_metadata.limits import Reason, Unusable

Node: TypeAlias = tuple[str, dict[str, Any]]
"""Type and inputs of a node. Inputs are links or values."""

Graph: TypeAlias = dict[str, Node]
_MAX_STEPS = 100_000

PIPES = (
    "text_embeds",
    "hyvid_embeds",
    "basic_pipe",
    "pipe",
    "detailer_pipe",
    "optional_pipe",
    "sdxl_pipe",
    "sdxl_tuple",
    "context",
    "base_ctx",
    "ctx",
)
"""Inputs that carry both sides of the conditioning, or everything."""

_MODEL_FILE = r"safetensors|sft|ckpt|pth?|bin|gguf|onnx|engine|th|lora|vae"
_FILE = (
    rf"{_MODEL_FILE}|txt|json|ya?ml|csv|md|html?|pdf|zip|py|png|jpe?g|jfif|webp|gif|bmp|tiff?|avif|hei[cf]"
)
_FILE += r"|mp4|webm|mov|mkv|avi|wav|mp3|flac|ogg|psd|svg|exr|hdr|cr2|nef|dng|glb|obj|ply"
_NO_PROMPT = re.compile(
    rf"[^\s,;|]{{1,400}}\.(?:{_FILE})"
    rf"|[^\n,;|]{{0,400}}[\\/][^\n,;|/\\]{{1,400}}\.(?:{_FILE})"
    r"|[^\n,;|]{1,400}\.(?:safetensors|sft|ckpt|pth|gguf)"
    r"|(?:[a-z]:[\\/]|\.{1,2}/|~/|/|\\\\)[^\s,;|]{1,400}"
    r"|(?:https?|file|data|ftp):\S{1,4000}"
    r"|\#(?:[0-9a-f]{3,4}|[0-9a-f]{6}|[0-9a-f]{8})"
    r"|(?:rgb|hsl)a?\([\d.,\s%deg/]{1,60}\)"
    r"|\{?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\}?",
    re.IGNORECASE,
)
_LONGEST_NO_PROMPT = 4100
_REMEMBERED_LETTERS = 80
_REMEMBERED_NAMES = 2000


class UnknownText(Exception):
    """The text is computed when the graph runs (by a language model, from a file, at random), so the graph
    does not hold it.
    """


class Budget:
    """Remaining steps for one graph."""

    __slots__ = ("left",)

    def __init__(self, steps: int = _MAX_STEPS) -> None:
        self.left = steps

    def spend(self, steps: int = 1) -> None:
        """Use up steps.

        Raises:
            Unusable: the budget is exhausted.
        """
        self.left -= steps
        if self.left < 0:
            raise Unusable(Reason.TEXT_TOO_LARGE, "a graph with too many ways through it")


def is_link(value: Any) -> TypeGuard[list[Any]]:
    """Return whether an input is connected to another node: ``[node name, output number]``."""
    return (
        type(value) is list
        and len(value) == 2
        and isinstance(value[1], int)
        and isinstance(value[0], (str, int))
    )


def parse_graph(data: dict[str, Any]) -> Graph:
    """Extract the nodes from parsed JSON. An invalid type or invalid inputs count as empty."""
    graph: Graph = {}
    for name, node in data.items():
        if isinstance(node, dict) and "class_type" in node:
            kind, inputs = node["class_type"], node.get("inputs")
            graph[name] = (
                kind if isinstance(kind, str) else "",
                inputs if isinstance(inputs, dict) else {},
            )
    return graph


class Remembered(dict[str, bool]):
    """Caches whether a pattern occurs in a name. There are few node types and inputs, and every image has
    them.

    Long names are not cached, so that untrusted files cannot fill the memory.
    """

    __slots__ = ("_search",)

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self._search = re.compile(pattern, re.IGNORECASE).search

    def __missing__(self, name: str) -> bool:
        found = self._search(name) is not None
        if len(name) <= _REMEMBERED_LETTERS:
            if len(self) >= _REMEMBERED_NAMES:
                self.clear()
            self[name] = found
        return found


def can_be_prompt(text: str) -> bool:
    """Return whether a text can be a prompt, rather than a file name, path, address, colour or node number.
    """
    text = text.strip()
    if " " in text and "," in text and text[:3].lower() not in ("rgb", "hsl"):
        return True  # nothing else in the pattern below contains both
    return len(text) > _LONGEST_NO_PROMPT or not _NO_PROMPT.fullmatch(text)
