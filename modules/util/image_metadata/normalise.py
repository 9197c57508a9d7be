"""Prompts as captions: one line, without the tags that generators act on."""

from __future__ import annotations

UNCONDITIONAL = "UNCONDITIONAL"
"""The prompt of images that were asked for nothing in words."""


def strip_angle_bracket_segments(text: str) -> str:
    """Remove ``<...>`` segments (wildcards, LoRAs, segment tags), nested ones too.

    A bracket that is never closed stays, and so does one before a space: ``a < b`` is no tag.
    """
    if "<" not in text or ">" not in text:
        return text
    kept: list[str] = []
    openings: list[int] = []
    start = 0
    for at, character in enumerate(text):
        if character == "<":
            if not text[at + 1 : at + 2].isspace():
                kept.append(text[start:at])
                openings.append(len(kept))
                start = at
        elif character == ">" and openings:
            del kept[openings.pop() :]
            start = at + 1
    kept.append(text[start:])
    return "".join(kept)


def normalise_prompt(text: str) -> str:
    """The prompt images are grouped by: tags gone, white space folded, ``UNCONDITIONAL`` if no word is left."""
    folded = " ".join(strip_angle_bracket_segments(text).split())
    return folded if any(map(str.isalnum, folded)) else UNCONDITIONAL


def plain_unicode(text: str) -> str:
    """The same text without halves of surrogate pairs and zero characters, which no file or database takes."""
    if "\0" in text:
        text = text.replace("\0", "")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
