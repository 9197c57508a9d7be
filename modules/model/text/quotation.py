"""Quotations inside a prompt, which some models read letter by letter because they are to be rendered as text."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PAIRS = (("'", "'"), ('"', '"'), ("\u2018", "\u2019"), ("\u201c", "\u201d"))
_QUOTED = re.compile("|".join(f"{first}[^{first}{last}]*{last}" for first, last in _PAIRS))
_INSIDE_A_WORD = re.compile(r"[a-zA-Z]+'[a-zA-Z]+")
_APOSTROPHE = "\ue000"
"""Replaces an apostrophe that is part of a word; prompts have no use for this character."""


def quotations(prompt: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a prompt in order, and whether each is a quotation, including its marks.

    Quotation marks are ' and ", and the two curly pairs. An apostrophe between ASCII letters does not count.
    """
    hidden = _INSIDE_A_WORD.sub(lambda word: word[0].replace("'", _APOSTROPHE), prompt)
    at = 0
    for found in _QUOTED.finditer(hidden):
        for start, end, quoted in ((at, found.start(), False), (found.start(), found.end(), True)):
            if end > start:
                yield prompt[start:end], quoted
        at = found.end()
    if at < len(prompt):
        yield prompt[at:], False
