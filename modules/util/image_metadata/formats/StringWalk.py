"""Texts in a ComfyUI graph: encoder inputs, string and primitive nodes, and nodes that put texts together."""

from __future__ import annotations

import re
from typing import Any

from modules.util.image_metadata.formats.comfy_values import Budget, Graph, is_link, node_inputs, node_type
from modules.util.image_metadata.limits import MAX_PROMPT, Reason, Unusable

_MAX_DEPTH = 60
_ENCODED = (
    "text",
    "text_g",
    "text_l",
    "t5xxl",
    "clip_l",
    "clip_g",
    "llama",
    "prompt",
    "user_prompt",
    "bert",
    "mt5xl",
    "tags",
    "lyrics",
    "text_positive",
    "positive_prompt",
    "positive",
    "positive_g",
    "positive_l",
    "text1",
    "text2",
    "string",
    "caption",
)
_NEGATIVE = (
    "negative",
    "text_negative",
    "negative_prompt",
    "negative_g",
    "negative_l",
    "negativeprompt",
)
_POSITIVE_TWIN = (
    "positive",
    "text_positive",
    "positive_prompt",
    "positive_g",
    "positive_l",
    "prompt",
    "text",
)
_ENCODED_SET = frozenset(_ENCODED)
_OWN_TEXTS = frozenset((*_ENCODED, *_NEGATIVE))
_MADE = ("populated_text", "result", "output_text", "text_0")
_SINGLE = (
    "value",
    "string",
    "String",
    "text",
    "Text",
    "prompt",
    "Prompt",
    "wildcard_text",
    "multiline_text",
    "input_string",
    "input_text",
    "STRING",
    "source",
    "any",
    "anything",
    "input",
    "",
    "positive",
    "text_positive",
)
_PART = re.compile(r"(?:text|string|str|prompt|input|part|value)[_ ]?(?:[a-z]|\d{1,2})\Z", re.IGNORECASE)
_JOINED_FROM = re.compile(r"concat|join|combine|append|merge|function|multi|stack", re.IGNORECASE)
_BETWEEN = ("delimiter", "separator", "sep", "delim")
_ESCAPES = {"\\n": "\n", "\\t": "\t"}


class StringWalk:
    """Resolves text inputs, through links as far as it takes.

    Args:
        graph: nodes by name.
        budget: steps this graph may take.
    """

    def __init__(self, graph: Graph, budget: Budget) -> None:
        self.graph = graph
        self.budget = budget
        self._made: dict[tuple[str, str], str] = {}

    def has_text(self, inputs: dict[str, Any]) -> bool:
        """Whether a node carries texts itself."""
        return any(key in _OWN_TEXTS and isinstance(value, str) for key, value in inputs.items())

    def encoder_text(self, inputs: dict[str, Any], role: str) -> str:
        """The text of an encoder; of two-headed ones, what both were given, else each once, the longest first."""
        if role == "negative":
            for key in _NEGATIVE:
                if key in inputs:
                    return self._value(inputs[key], role, frozenset(), 0).strip()
        texts: list[str] = []
        for key in _ENCODED if len(inputs) > 2 else inputs:
            if key not in inputs or key not in _ENCODED_SET:
                continue
            text = self._value(inputs[key], role, frozenset(), 0).strip()
            if text and text not in texts:
                texts.append(text)
        if len(texts) < 2:
            return texts[0] if texts else ""
        longest = max(texts, key=len)
        rest = [text for text in texts if text not in longest]
        return ", ".join([longest, *rest])

    def text_from(self, link: list[Any], role: str) -> str:
        """What a node puts out as text."""
        return self._made_by(link, role, frozenset(), 0).strip()

    def _value(self, value: Any, role: str, seen: frozenset[str], depth: int) -> str:
        if isinstance(value, str):
            return value
        return self._made_by(value, role, seen, depth) if is_link(value) else ""

    def _made_by(self, link: list[Any], role: str, seen: frozenset[str], depth: int) -> str:
        """The text a node puts out."""
        self.budget.spend()
        name = str(link[0])
        node = self.graph.get(name)
        if node is None or name in seen or depth > _MAX_DEPTH:
            return ""
        side = role
        inputs = node_inputs(node)
        twins = [key for key in _NEGATIVE if key in inputs]
        if twins and any(key in inputs for key in _POSITIVE_TWIN):
            # A node with both texts puts the positive one out first, whoever asks.
            side = ("positive", "negative")[link[1]] if link[1] in (0, 1) else role
        made = self._made.get((name, side))
        if made is None:
            made = self._compose(node_type(node), inputs, side, seen | {name}, depth + 1)
            if len(made) > MAX_PROMPT:
                raise Unusable(Reason.PROMPT_TOO_LONG, f"{len(made)} characters")
            if not seen:
                self._made[name, side] = made
        return made

    def _compose(self, kind: str, inputs: dict[str, Any], side: str, seen: frozenset[str], depth: int) -> str:
        for key in _MADE:
            if isinstance(inputs.get(key), str) and inputs[key].strip():
                return str(inputs[key])
        if side == "negative":
            for key in _NEGATIVE:
                if key in inputs:
                    return self._value(inputs[key], side, seen, depth)
        parts = [key for key in inputs if _PART.match(key)]
        if len(parts) > 1 or (parts and _JOINED_FROM.search(kind)):
            return self._join(inputs, parts, side, seen, depth)
        for key in (*_SINGLE, *_ENCODED, *parts):
            if key in inputs:
                text = self._value(inputs[key], side, seen, depth)
                if text.strip():
                    return text
        return ""

    def _join(
        self, inputs: dict[str, Any], parts: list[str], side: str, seen: frozenset[str], depth: int
    ) -> str:
        texts = [text for key in parts if (text := self._value(inputs[key], side, seen, depth)).strip()]
        between = next((inputs[key] for key in _BETWEEN if isinstance(inputs.get(key), str)), ", ")
        for escape, character in _ESCAPES.items():
            between = between.replace(escape, character)
        if len(texts) * len(between) > MAX_PROMPT:
            raise Unusable(Reason.PROMPT_TOO_LONG, "its parts stand too far apart")
        return between.join(texts)
