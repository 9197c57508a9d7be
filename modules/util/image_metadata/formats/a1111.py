"""The text written by A1111, Forge and many others: prompt, ``Negative prompt:``, and a line of settings."""

from __future__ import annotations

import re

from modules.util.image_metadata.formats.found import A1111, Found

_NEGATIVE = "Negative prompt:"
_FIRST_SETTING = "Steps:"
_SETTINGS = re.compile(r"Steps: ?\d+[ \t]*(?:,[ \t]*[A-Z][\w /.-]{0,60}:|,?[ \t]*(?:\n|\Z))")
_SETTINGS_ELSEWHERE = re.compile(r"(?:\A|\n)(?:[A-Z][\w /.-]{0,60}: ?[^,\n]{0,200}, ?){2,}[^\n]*(?=\n|\Z)")
_FLATTENED = re.compile(r"Steps: ?\d+, ?(?:Sampler|Seed|Size|Schedule|CFG|Model)\b")
_SEED = re.compile(r"\bSeed: ?(\d{1,20})\b")


def looks_like_a1111(text: str) -> bool:
    """Return whether a text contains the line of settings."""
    return _FIRST_SETTING in text and _settings_start(text) >= 0


def settings_text(text: str) -> str:
    """The line of settings, verbatim; empty if there is none."""
    text = text.replace("\r\n", "\n")
    start = _settings_start(text)
    return "" if start < 0 else text[start:]


def parse_a1111(text: str) -> Found:
    """Parse prompt, negative prompt and seed. A text without markers is entirely the prompt."""
    text = text.replace("\r\n", "\n")
    start = _settings_start(text)
    head, settings = (text, "") if start < 0 else (text[:start], text[start:])
    head, negative = _split_negative(head, flattened=start > 0 and text[start - 1] != "\n")
    seed = _SEED.search(settings)
    return Found(head.strip(), negative.strip(), A1111, int(seed.group(1)) if seed else None)


def _settings_start(text: str) -> int:
    """Start of the settings, -1 if there are none: the last line of that form, because prompts may quote such
    lines.
    """
    flattened = -1
    at = len(text)
    while (at := text.rfind(_FIRST_SETTING, 0, at)) >= 0:
        if at == 0 or text[at - 1] == "\n":
            if _SETTINGS.match(text, at):
                return at
        elif flattened < 0 and text[at - 1] in " ,.\t" and _FLATTENED.match(text, at):
            flattened = at
    if flattened < 0 and ("Seed: " in text or "Sampler: " in text):
        return _last_with_seed(text)
    return flattened


def _last_with_seed(text: str) -> int:
    found = -1
    for match in _SETTINGS_ELSEWHERE.finditer(text):
        if "Seed: " in match.group() or "Sampler: " in match.group():
            found = match.start()
    return found


def _split_negative(head: str, flattened: bool) -> tuple[str, str]:
    """Split off the negative prompt, which starts at the first line with its name, as in A1111 itself.

    ``flattened``: the text has lost its line breaks. It may then start anywhere; the last occurrence counts.
    """
    if head.startswith(_NEGATIVE):
        return "", head[len(_NEGATIVE) :]
    at = head.find("\n" + _NEGATIVE)
    if at < 0 and flattened:
        at = head.rfind(" " + _NEGATIVE)
    if at >= 0:
        return head[:at], head[at + 1 + len(_NEGATIVE) :]
    return head, ""
