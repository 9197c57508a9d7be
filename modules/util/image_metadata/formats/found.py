"""The result of reading one text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from modules.util.image_metadata.limits import MAX_JSON_MEMORY, Reason, Unusable

A1111 = "A1111"
COMFYUI = "ComfyUI"
DRAW_THINGS = "Draw Things"
EASY_DIFFUSION = "Easy Diffusion"
FOOOCUS = "Fooocus"
GROK = "Grok"
INVOKEAI = "InvokeAI"
LEONARDO = "Leonardo"
MIDJOURNEY = "Midjourney"
NOVELAI = "NovelAI"
SEAART = "SeaArt"
STABILITY_MATRIX = "Stability Matrix"
SWARMUI = "SwarmUI"
TEXT_FILE = "text file"
UNKNOWN = "unknown"


class Found(NamedTuple):
    """A prompt with its accompanying values.

    Args:
        sources: names of the edited images, as the generator calls them.
    """

    prompt: str
    negative: str
    generator: str
    seed: int | None = None
    sources: tuple[str, ...] = ()


_BYTES = (("[", 88), ("{", 240), (",", 40), (":", 120))
_SMALL = 64 * 1024
_MAX_OBJECTS = 16
_DECODER = json.JSONDecoder()


def load_json(text: str) -> Any:
    """Parse a JSON text. ``NaN`` and ``Infinity`` are accepted, because generators write them.

    Raises:
        Unusable: the text is damaged, nested too deeply, or would take too much memory.
    """
    text = text.strip(" \t\r\n\0\ufeff")
    _check_memory(text)
    try:
        data, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise Unusable(Reason.BAD_JSON) from error
    if end < len(text):
        raise Unusable(Reason.BAD_JSON)
    return data


def _check_memory(text: str) -> None:
    if len(text) > _SMALL and sum(text.count(mark) * size for mark, size in _BYTES) > MAX_JSON_MEMORY:
        raise Unusable(Reason.TEXT_TOO_LARGE, "its JSON has too many parts")


def load_objects(text: str) -> Iterator[Any]:
    """Yield the JSON objects in a text with other content in between. Damaged objects are skipped.

    Raises:
        Unusable: there is no object, or it would take too much memory.
    """
    _check_memory(text)
    start, found = text.find("{"), False
    for _ in range(_MAX_OBJECTS):
        if start < 0:
            break
        try:
            data, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            found = True
            yield data
        start = text.find("{", end)
    if not found:
        raise Unusable(Reason.BAD_JSON)


def as_seed(value: Any) -> int | None:
    """``value`` as a seed, if it is one."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if 0 <= value < 1 << 64 else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        return int(value)
    return None


def as_text(value: Any) -> str:
    """``value`` as a text. A list of texts is joined; anything else gives an empty text."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list):
        return ", ".join(part.strip() for part in value[:256] if isinstance(part, str) and part.strip())
    return ""
