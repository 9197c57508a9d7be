"""Texts in a ComfyUI graph: encoder inputs, string and primitive nodes, and nodes that combine texts."""

from __future__ import annotations

import re
from typing import Any

from modules.util.image_metadata.formats.comfy_values import (
    Budget,
    Graph,
    Remembered,
    UnknownText,
    can_be_prompt,
    is_link,
)
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
_NEGATIVE_SET = frozenset(_NEGATIVE)
_POSITIVE_TWIN = (
    "positive",
    "text_positive",
    "positive_prompt",
    "positive_g",
    "positive_l",
    "prompt",
    "text",
)
_PREPENDED = {
    "positive": ("prepend_positive", "prepend_positive_g"),
    "negative": ("prepend_negative", "prepend_negative_g"),
}
_PREPENDED_SET = frozenset(key for keys in _PREPENDED.values() for key in keys)
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
_ANY_OF = re.compile(r"(?:any|input|value|text|string)_?\d{1,3}\Z", re.IGNORECASE)
_FIRST_OF = Remembered(r"any.?switch|switch.?any|coalesce|fallback")
_JOINED_FROM = Remembered(r"concat|join|combine|append|merge|function|multi|stack")
_BETWEEN = ("delimiter", "separator", "sep", "delim")
_ESCAPES = {"\\n": "\n", "\\t": "\t"}
_WRITES = Remembered(
    r"llm|llama|chat|gpt|gemini|claude|grok|groq|mistral|deepseek|qwen.{0,6}vl|vlm|florence|blip|caption|interrogat"
    r"|tagger|describe|img2txt|image.?to.?(?:text|prompt)|vision|translat|superprompt|magic.?prompt|one.?button"
    r"|prompt.{0,3}(?:gen|enhanc|expan|upsampl|refin|improv)|enhanc.{0,3}prompt|inference|regex|random|line.?from"
    r"|(?:load|read|from).{0,12}(?:file|txt|csv|json)|file.?(?:reader|loader)|split|extract|substring|iterat|cycle"
    r"|(?:prompt|string|text|pick|select).?lines?(?![a-z])"
)
_WRITER_INPUTS = frozenset(
    (
        "temperature",
        "max_tokens",
        "max_new_tokens",
        "max_length",
        "top_p",
        "top_k",
        "api_key",
        "system_message",
    )
)
_SEEN = frozenset(("image", "images", "image_1", "image1", "pixels", "clip_vision", "video"))


class StringWalk:
    """Resolves text inputs, following links as far as needed.

    Args:
        graph: nodes by name.
        budget: maximum number of steps for this graph.
    """

    def __init__(self, graph: Graph, budget: Budget) -> None:
        self.graph = graph
        self.budget = budget
        self._made: dict[tuple[str, str], str] = {}

    def has_text(self, inputs: dict[str, Any]) -> bool:
        """Return whether a node carries texts itself."""
        return str in map(type, map(inputs.get, _OWN_TEXTS.intersection(inputs)))

    def encoder_text(self, inputs: dict[str, Any], role: str) -> str:
        """The text of an encoder. For encoders with two inputs: the shared text, else each text once, longest
        first.

        Raises:
            UnknownText: the text is computed when the graph runs, or is a file name or the like.
        """
        if role == "negative" and not _NEGATIVE_SET.isdisjoint(inputs):
            for key in _NEGATIVE:
                if key in inputs:
                    return self._prepended(inputs, key, role)
        texts: list[str] = []
        for key in _ENCODED if len(inputs) > 2 else inputs:
            if key not in inputs or key not in _ENCODED_SET:
                continue
            text = self._prepended(inputs, key, role)
            if text and text not in texts:
                texts.append(text)
        if len(texts) < 2:
            return texts[0] if texts else ""
        longest = max(texts, key=len)
        rest = [text for text in texts if text not in longest]
        return ", ".join([longest, *rest])

    def _prepended(self, inputs: dict[str, Any], key: str, role: str) -> str:
        """The text under ``key``, after texts that a pipe loader prepends."""
        text = self.checked(inputs[key], role)
        if key == role and not _PREPENDED_SET.isdisjoint(inputs):
            before = (self.checked(inputs[k], role) for k in _PREPENDED[role] if k in inputs)
            return " ".join(part for part in (*before, text) if part)
        return text

    def checked(self, value: Any, role: str) -> str:
        """The text of an input, as a value or through a link; empty if there is none.

        Raises:
            UnknownText: the text is computed when the graph runs, or is a file name or the like.
        """
        if not isinstance(value, str):
            value = self._made_by(value, role, frozenset(), 0) if is_link(value) else ""
        text: str = value.strip()
        if not can_be_prompt(text):
            raise UnknownText
        return text

    def _value(self, value: Any, role: str, seen: frozenset[str], depth: int) -> str:
        if isinstance(value, str):
            return value
        return self._made_by(value, role, seen, depth) if is_link(value) else ""

    def _made_by(self, link: list[Any], role: str, seen: frozenset[str], depth: int) -> str:
        """The text output of a node."""
        self.budget.spend()
        name = str(link[0])
        node = self.graph.get(name)
        if node is None:
            raise UnknownText
        if name in seen or depth > _MAX_DEPTH:
            return ""
        side = role
        kind, inputs = node
        twins = [key for key in _NEGATIVE if key in inputs]
        if twins and any(key in inputs for key in _POSITIVE_TWIN):
            # A node with both texts outputs the positive one first.
            side = ("positive", "negative")[link[1]] if link[1] in (0, 1) else role
        made = self._made.get((name, side))
        if made is None:
            made = self._compose(kind, inputs, side, seen | {name}, depth + 1)
            if len(made) > MAX_PROMPT:
                raise Unusable(Reason.PROMPT_TOO_LONG, f"{len(made)} characters")
            if not seen:
                self._made[name, side] = made
        return made

    def _compose(self, kind: str, inputs: dict[str, Any], side: str, seen: frozenset[str], depth: int) -> str:
        for key in _MADE:
            if isinstance(inputs.get(key), str) and inputs[key].strip():
                return str(inputs[key])
        if _is_writer(kind, inputs):
            raise UnknownText
        if side == "negative":
            for key in _NEGATIVE:
                if key in inputs:
                    return self._value(inputs[key], side, seen, depth)
        if "find" in inputs and "replace" in inputs:
            return self._replaced(inputs, side, seen, depth)
        if _FIRST_OF[kind]:
            return self._first(inputs, side, seen, depth)
        parts = [key for key in inputs if _PART.match(key)]
        if len(parts) > 1 or (parts and _JOINED_FROM[kind]):
            return self._join(inputs, parts, side, seen, depth)
        for key in (*_SINGLE, *_ENCODED, *parts):
            if key in inputs:
                text = self._value(inputs[key], side, seen, depth)
                if text.strip():
                    return text
        return ""

    def _replaced(self, inputs: dict[str, Any], side: str, seen: frozenset[str], depth: int) -> str:
        source = next((inputs[key] for key in ("string", "text", "value") if key in inputs), "")
        text, find, put = (
            self._value(value, side, seen, depth) for value in (source, inputs["find"], inputs["replace"])
        )
        if not find:
            return text
        if text.count(find) * len(put) > MAX_PROMPT:
            raise Unusable(Reason.PROMPT_TOO_LONG, "its replaced parts are too long")
        return text.replace(find, put)

    def _first(self, inputs: dict[str, Any], side: str, seen: frozenset[str], depth: int) -> str:
        """The first connected input, for switches that pass on whatever is connected."""
        links = (value for key, value in inputs.items() if _ANY_OF.match(key) and is_link(value))
        first = next(links, None)
        return "" if first is None else self._value(first, side, seen, depth)

    def _join(
        self, inputs: dict[str, Any], parts: list[str], side: str, seen: frozenset[str], depth: int
    ) -> str:
        texts = [text for key in parts if (text := self._value(inputs[key], side, seen, depth)).strip()]
        between = next((inputs[key] for key in _BETWEEN if isinstance(inputs.get(key), str)), ", ")
        for escape, character in _ESCAPES.items():
            between = between.replace(escape, character)
        if len(texts) * len(between) > MAX_PROMPT:
            raise Unusable(Reason.PROMPT_TOO_LONG, "its parts are too far apart")
        return between.join(texts)


def _is_writer(kind: str, inputs: dict[str, Any]) -> bool:
    """Return whether a node creates its text with a language model, from an image or file, or at random."""
    if not _WRITER_INPUTS.isdisjoint(inputs):
        return True
    if not _SEEN.isdisjoint(inputs) and any(is_link(inputs.get(key)) for key in _SEEN):
        return True
    return _WRITES[kind]
