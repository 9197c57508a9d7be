"""The texts of the repository are about the product alone."""

from __future__ import annotations

import re

import pytest

from tests.house.exceptions import breaches
from tests.source_tree import repository_texts

# Put together here, so that this file does not hold them.
WORDS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?<![\w.])/(work|tmp|root|home/\w+)/" + r"\w",
        r"\b(clau" + r"de|anthro" + r"pic|chat" + r"gpt|co" + r"pilot)\b",
        r"\bas an a" + r"i\b|\blanguage mo" + r"del assistant",
        r"\b(sub|coding[ -]|ai[ -])ag" + r"ents?\b",
        r"\b(team|task|this|the) br" + r"ief\b(?! (look|summary|moment|pause))",
        r"\bthe sp" + r"ec says\b|\bshared/(sp" + r"ec|des" + r"ign)\b|\bcontract\.m" + r"d\b",
        r"\b(issue|pull request|closes|fixes|resolves) #" + r"\d",
        r"\b(previous|earlier|this|another|next|coding) se" + r"ssion'?s? (of work|wrote|left|did|will)\b",
    )
]

ALLOWED = {
    "modules/util/image_metadata/formats/StringWalk.py": "services that nodes of ComfyUI write prompts with",
}
"""Files that need such words for what the program does."""


def offending(text: str) -> list[tuple[int, str]]:
    """Lines with words that are not about the product."""
    starts = {match.start() for word in WORDS for match in word.finditer(text)}
    numbers = sorted({text.count("\n", 0, start) for start in starts})
    lines = text.split("\n")
    return [(number + 1, lines[number].strip()[:100]) for number in numbers]


def test_texts_are_about_the_product_alone():
    texts = dict(repository_texts())
    assert {"pyproject.toml", "tests/source_tree.py", "docs/config.md"} <= texts.keys()
    found = {
        name: "; ".join(f"line {line}: {words}" for line, words in lines)
        for name, text in texts.items()
        if (lines := offending(text))
    }
    faults = breaches(found, ALLOWED)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "text",
    [
        "see /wo_rk/main",
        "wrote /t_mp/x",
        "fixes #_12",
        "as the sp_ec says",
        "asked Clau_de",
        "two subag_ents",
    ],
)
def test_other_words_are_found(text):
    assert offending(text.replace("_", ""))
    assert not offending("a session of rating; workspace/run; a brief look; specification; #12 in the list")
