"""The texts of the repository are about the product alone, in the words of the glossary (CONTRIBUTING.md)."""

from __future__ import annotations

import re

import pytest

from tests.house.exceptions import breaches
from tests.source_tree import repository_texts

# Put together here, so that this file does not hold them.
# They are lower-case and looked for in lower-case texts: ignoring the case takes up to three times as long.
WORDS = [
    re.compile(pattern)
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
    small = text.lower()
    starts = {match.start() for word in WORDS for match in word.finditer(small)}
    numbers = sorted({small.count("\n", 0, start) for start in starts})
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


# -- plain English -----------------------------------------------------------------------------------------------

GLOSSARY = {
    r"(go|goes|going|went) on": "resume (a run), continue (a list)",
    r"beside": "next to, besides",
    r"so many": "up to N, this many",
    r"foresee(s|n|ing)?|foresaw": "estimate, predict",
    r"(is|are|was|were) no numbers?": "is NaN or infinite, is not a number",
    r"no multiple": "is not a multiple of",
    r"put right": "fix",
    r"mend(s|ed|ing)?": "fix",
    r"look-?alikes?|look(s|ed)? alike": "near-duplicate, similar",
    r"there twice": "is listed twice",
    r"(?<!standard\s)deviations?(?!\()": "standard deviation",
    r"passed over": "skipped",
    r"anew": "again",
    r"all the same": "still, nevertheless",
    r"(give|gives|gave|given|take|takes|taken|carry out|carries out|carried out) (an )?orders?": "command",
    r"(?<!there\s)(is|are) no (?!longer|more|better|worse|less|different|one|need|use)[a-z]+": "is not a ...",
    r"without a word": "silently",
    r"torn apart": "split",
    r"told from": "distinguished from",
    r"stands? (in|at) (?!for)": "is in, is shown at",
    r"set-up": "setup",
    r"(one|prompt|object|answer|number) a (line|side|core|mode)": "one per line",
    r"not offered": "not supported",
    r"nobody knows": "unknown",
    r"taken over": "imported, used",
    r"for there (is|are)": "because there is",
    r"say(s)? of (itself|themselves)": "its metadata, its own ...",
    r"loud colours": "overly strong colours",
    r"in one another": "nested",
    r"lies? (in|next to|below|outside|between|within|around)": "is in, is next to",
    r"process(es)? of (its|their) own": "a separate process",
    r"by the clock": "wall time",
    r"exists? already": "already exists",
    r"(puts|put) out": "outputs, gives",
    r"in few bits": "in 8 or 4 bits",
    r"(stand|stands) next to": "is compared with, is next to",
    r"gets? lost": "is lost",
    r"stops? to (count|learn|train|see)": "stops counting",
    r"(is|are) there again": "exists again",
    r"something else than": "something other than",
    r"(mark|marks|marked) down": "lower the score",
    r"earn(s|ed)? its place": "is worth it",
}
"""Idioms that were translated word for word (as regular expressions, whole words), and what to write instead."""
GAP = r"[\s#]+"
PLAIN = re.compile(rf"\b(?:{'|'.join(GLOSSARY)})\b".replace(" ", GAP))
TITLE = re.compile(r'title=\(?"(?:Most |Least |[^"]*\bof them\b)')
QUESTION = re.compile(r"\"{3}(What|How|Where|Whether|Which|Who|When|Why)\b")
"""Docstrings that begin like a question: write "Number of ...", "Return whether ..." or "True if ..."."""
READ = ("modules/", "scripts/", "docs/", "README.md", "CONTRIBUTING.md")
TRANSLATED: dict[str, str] = {
    "CONTRIBUTING.md": "its glossary lists what not to write",
}


def translated(text: str) -> list[tuple[int, str]]:
    """Lines with idioms of the glossary; a phrase may go over line breaks and comment marks."""
    lines, small = text.split("\n"), text.lower()
    places = [(text, match.start()) for words in (TITLE, QUESTION) for match in words.finditer(text)]
    places += [(small, match.start()) for match in PLAIN.finditer(small)]
    numbers = sorted({searched.count("\n", 0, place) for searched, place in places})
    return [(number + 1, lines[number].strip()[:100]) for number in numbers]


def test_texts_are_in_the_words_of_the_glossary():
    found = {
        name: "; ".join(f"line {line}: {words}" for line, words in lines)
        for name, text in repository_texts()
        if name.startswith(READ) and name.endswith((".py", ".md"))
        if (lines := translated(text))
    }
    faults = breaches(found, TRANSLATED)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "text",
    [
        "the run goes on from its backup",
        "the file beside\n    the image",
        "# stop after so\n    # many steps",
        "the loss is no number",
        "'a' is there twice",
        "the deviation of the noise",
        "it is no regular file",
        'title="How many of them"',
        'title=(\n"Most steps")'.replace("\n", ""),
        "Takes orders while it runs",
        "prompts, one a line",
        "the family is not offered",
        "the source lies next to the image",
        "trains in a process of its own",
        '"' * 3 + "How many images there are.",
        '"' * 3 + "Whether the file exists.",
    ],
)
def test_translated_idioms_are_found(text):
    assert translated(text)


def test_plain_english_is_not_found():
    assert not translated(
        "resume; besides; there is no backup; it is no longer there; standard\ndeviation; most of them; amend; "
        "in order; a thread of its own; " + '"' * 3 + "However it is written."
    )
