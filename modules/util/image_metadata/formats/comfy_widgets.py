"""Values of nodes as saved by the ComfyUI window, mostly as a list without names.

Values are read by name if the names are known. Otherwise a value is a prompt only in a text node, and only if
it reads like one.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from modules.util.image_metadata.formats.comfy_values import can_be_prompt

_SEED_CONTROLS = ("fixed", "randomize", "increment", "decrement")
"""Values that follow a seed among the values of a node."""
_LAYOUTS = {
    "CLIPTextEncode": ("text",),
    "CLIPTextEncodeFlux": ("clip_l", "t5xxl"),
    "CLIPTextEncodeHiDream": ("clip_l", "clip_g", "t5xxl", "llama"),
    "CLIPTextEncodeHunyuanDiT": ("bert", "mt5xl"),
    "CLIPTextEncodeLumina2": ("system_prompt", "user_prompt"),
    "CLIPTextEncodePixArtAlpha": ("width", "height", "text"),
    "CLIPTextEncodeSD3": ("clip_l", "clip_g", "t5xxl"),
    "CLIPTextEncodeSDXL": (*("size",) * 6, "text_g", "text_l"),
    "CLIPTextEncodeSDXLRefiner": (*("size",) * 3, "text"),
    "Eff. Loader SDXL": (*("model",) * 7, "positive", "negative"),
    "Efficient Loader": (*("model",) * 6, "positive", "negative"),
    "ImpactWildcardEncode": ("wildcard_text", "populated_text"),
    "ImpactWildcardProcessor": ("wildcard_text", "populated_text"),
    "PrimitiveNode": ("value",),
    "PrimitiveString": ("value",),
    "PrimitiveStringMultiline": ("value",),
    "SDXLPromptStyler": ("text_positive", "text_negative", "style"),
    "StringConcatenate": ("string_a", "string_b", "delimiter"),
    "TextEncodeQwenImageEdit": ("prompt",),
    "TextEncodeQwenImageEditPlus": ("prompt",),
    "easy fullLoader": (*("model",) * 10, "positive", "negative"),
    "ttN pipeLoader_v2": (*("model",) * 5, "positive", "how", "how", "negative"),
}
"""Names of the first values of nodes, in order; ``size``, ``model`` and ``how`` are skipped."""
_PASSED_OVER = ("size", "model", "how", "style")
_SHOWN = re.compile(r"show.?text|preview.?any|display.?(?:text|any)|text.?(?:preview|output)", re.IGNORECASE)
_FOR_TEXTS = re.compile(r"text|string|prompt|primitive|positive|negative|wildcard|encode", re.IGNORECASE)
_NOT_FOR_TEXTS = re.compile(
    r"load|file|save|style|select|list|switch|note|font|overlay|pipe|vae|image|node|lora|preset|chat|llm",
    re.IGNORECASE,
)
_SAMPLES = re.compile(r"Sampler|Noise")
_WORD = re.compile(r"[^\W\d_]{2,}")
_OTHER_SCRIPT = re.compile(r"[^\x00-\u02ff]{4}")


def named_values(node: dict[str, Any], slots: list[str], makes_pictures: bool) -> dict[str, Any]:
    """The values of a node by input name, as far as known.

    Args:
        slots: input names that the file lists for its values, in order.
        makes_pictures: whether it outputs a picture without a text encoder, like a partner's node.
    """
    values = node.get("widgets_values")
    if isinstance(values, dict):
        return dict(values)
    if not isinstance(values, list):
        return {}
    kind = str(node["type"])
    if slots and (aligned := align(slots, values)) is not None:
        return aligned
    if _SAMPLES.search(kind):
        return {"steps": 0, **_seed(values, "noise_seed" if "Noise" in kind else "seed")}
    if kind in _LAYOUTS:
        named = zip(_LAYOUTS[kind], values, strict=False)
        return {name: value for name, value in named if name not in _PASSED_OVER}
    return _guessed(kind, values, makes_pictures)


def align(slots: list[str], values: list[Any]) -> dict[str, Any] | None:
    """Match names to values. The control after a seed has a value but no name. ``None`` if they do not match."""
    named: dict[str, Any] = {}
    rest = iter(values)
    value = next(rest, _END)
    for slot in slots:
        if value is _END:
            return None
        named[slot] = value
        value = next(rest, _END)
        if value in _SEED_CONTROLS and "seed" in slot:
            value = next(rest, _END)
    if value is _END or (value in ("image", "video", "audio") and next(rest, _END) is _END):
        return named
    return None


_END = object()


def _seed(values: list[Any], name: str) -> dict[str, Any]:
    return next(({name: value} for value, control in pairwise(values) if control in _SEED_CONTROLS), {})


def _guessed(kind: str, values: list[Any], makes_pictures: bool) -> dict[str, Any]:
    """The only text among the values of a text node, or of a node that makes pictures from nothing else."""
    flat = [inner for value in values for inner in (value if isinstance(value, list) else [value])]
    texts = [value for value in flat if isinstance(value, str) and value.strip()]
    if _SHOWN.search(kind):
        return {"text_0": texts[-1]} if texts else {}
    if makes_pictures:
        texts = [text for text in texts if _reads_like_text(text)]
        seed = _seed(values, "seed")
        return {"prompt": texts[0], **seed} if texts and seed else {}
    if not _FOR_TEXTS.search(kind) or _NOT_FOR_TEXTS.search(kind):
        return {}
    written = (
        texts if len(texts) == 1 and "encode" in kind.lower() else [t for t in texts if _reads_like_text(t)]
    )
    return {"text": written[0]} if len(written) == 1 else {}


def _reads_like_text(text: str) -> bool:
    """Return whether there are at least two words, or a few characters of a script written without spaces."""
    if not can_be_prompt(text):
        return False
    words = text[:2000].replace(",", " ").split()
    return sum(_WORD.search(word) is not None for word in words) > 1 or bool(_OTHER_SCRIPT.search(text))
