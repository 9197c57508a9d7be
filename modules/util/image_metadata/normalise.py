"""Normalises prompts to captions: one line, without the tags and flags that generators act on."""

from __future__ import annotations

import re

UNCONDITIONAL = "UNCONDITIONAL"
"""The prompt of images that were made without a prompt."""

_SEPARATORS = (",", "，", "、")
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;:?]{0,40}[ -/]{0,4}[@-~]")
_UNSEEN = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u200b\u2060\ufeff\u202a-\u202e\u2066-\u2069]")
"""Control characters, zero-width marks, and marks that change the writing direction; no white space."""
_NUMBER = r"\d{1,12}(?:\.\d{1,6})?"
_CODES = r"[^\s-][^\s]{0,400}(?:\s+[^\s-][^\s]{0,400}){0,20}"
_MIDJOURNEY_FLAG = re.compile(
    rf"(?:ar|aspect)\s+{_NUMBER}[:x/]{_NUMBER}"
    rf"|(?:v|version|niji)(?:\s+{_NUMBER})?"
    rf"|(?:s|stylize|c|chaos|q|quality|w|weird|iw|cw|sw|ow|sv|exp|seed|sameseed|stop|repeat|r|bs|motion)"
    rf"\s+(?:{_NUMBER}|low|high)"
    rf"|style\s+(?:raw|cute|expressive|original|scenic|4a|4b|4c)"
    rf"|(?:p|profile|personalize)(?:\s+{_CODES})?"
    rf"|(?:sref|cref|oref|end)\s+{_CODES}"
    rf"|no\s+[^\n]{{1,2000}}"
    rf"|(?:tile|raw|draft|hd|loop|video|fast|relax|turbo|stealth|public|uplight|upbeta|upanime|creative|test|testp)",
    re.IGNORECASE | re.DOTALL,
)
_BRACKETS = re.compile("<+|>")
_FLAG_STARTS = re.compile(r"(?:\A|(?<=\s))(?:--|[\u2013\u2014])(?=[A-Za-z])")


def strip_angle_bracket_segments(text: str) -> str:
    """Remove tags such as ``<lora:x:1>`` or ``<wildcard:x>``, including nested ones, with the comma each
    leaves.

    A tag starts with a letter directly after its bracket. ``<3``, ``a < b`` and unclosed brackets stay.
    """
    if "<" not in text or ">" not in text:
        return text
    spans = _tag_spans(text)
    if not spans:
        return text
    pieces, start = [], 0
    for opening, closing in spans:
        pieces.append(text[start:opening])
        start = closing
    pieces.append(text[start:])
    return _join_around_tags(pieces)


def _tag_spans(text: str) -> list[tuple[int, int]]:
    """(start, end) of every outermost tag, in order."""
    spans: list[tuple[int, int]] = []
    openings: list[int] = []
    for bracket in _BRACKETS.finditer(text):
        start, end = bracket.span()
        if text[start] == "<":
            if text[end : end + 1].isalpha():
                openings += range(start, end)
        elif openings:
            opening = openings.pop()
            while spans and spans[-1][0] > opening:
                spans.pop()
            spans.append((opening, end))
    return spans


def _join_around_tags(pieces: list[str]) -> str:
    """Join the texts between tags. A comma that separated only tags is dropped."""
    kept = [pieces[0]]
    last = pieces[0].rstrip()[-1:]
    for piece in pieces[1:]:
        rest = piece.lstrip()
        if rest.startswith(_SEPARATORS):
            if not last or last in _SEPARATORS:
                piece = rest[1:].lstrip() if kept[-1][-1:].isspace() else rest[1:]
            else:
                kept[-1] = kept[-1].rstrip()
                piece = rest
        kept.append(piece)
        last = piece.rstrip()[-1:] or last
    if not kept[-1].strip() and last in _SEPARATORS:
        return "".join(kept).rstrip()[:-1]
    return "".join(kept)


def normalise_prompt(text: str) -> str:
    """Normalise a prompt to the single line by which images are grouped; ``UNCONDITIONAL`` if no word is
    left.

    Removes tags in angle brackets, Midjourney's trailing flags (``--ar 3:2``), terminal codes, control
    characters and invisible marks. White space is collapsed.
    """
    text = strip_angle_bracket_segments(_visible(text))
    folded = _without_flags(" ".join(text.split()))
    return folded if any(map(str.isalnum, folded)) else UNCONDITIONAL


def _visible(text: str) -> str:
    """Remove terminal codes and invisible characters."""
    return text if text.isprintable() else _UNSEEN.sub("", _TERMINAL_CODE.sub("", text))


def _without_flags(text: str) -> str:
    """Remove Midjourney's flags one by one from the end, so that dashes within a sentence stay."""
    if "-" not in text and "\u2014" not in text and "\u2013" not in text:
        return text
    for start in reversed([match.start() for match in _FLAG_STARTS.finditer(text)]):
        name = start + (2 if text[start] == "-" else 1)
        if not _MIDJOURNEY_FLAG.fullmatch(text, name):
            break
        text = text[:start].rstrip(" ,")
    return text


def plain_unicode(text: str) -> str:
    """Remove unpaired surrogates and NUL characters, which files and databases reject."""
    if "\0" in text:
        text = text.replace("\0", "")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
