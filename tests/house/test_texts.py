"""Generated pages of the documentation name each thing once where it belongs."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.house.exceptions import breaches
from tests.source_tree import ROOT

PAGES = ("docs/config.md",)
ALLOWED: dict[str, str] = {}


def chapters(page: str) -> list[tuple[str, str]]:
    """Headings of the second level and what is below each."""
    parts = re.split(r"^## (.+)$", page, flags=re.M)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def repeated(page: str) -> dict[str, str]:
    """Chapters and paths in a chapter that are there more than once."""
    found = chapters(page)
    titles = Counter(title for title, _ in found)
    twice = {title: f"{count} chapters of this name" for title, count in titles.items() if count > 1}
    for title, text in found:
        paths = Counter(re.findall(r"^\| `([^`]+)`", text, flags=re.M))
        twice |= {f"{title}: {path}": f"{count} rows" for path, count in paths.items() if count > 1}
    return twice


@pytest.mark.parametrize("page", PAGES)
def test_each_path_is_there_once_in_a_chapter(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(re.findall(r"^\| `", text, flags=re.M)) > 150
    faults = breaches(repeated(text), ALLOWED)
    assert not faults, "\n".join(faults)


def test_a_repeated_path_or_chapter_is_found():
    page = "# Page\n## A\n| `x` | 1 |\n| `y` | 2 |\n## B\n| `x` | 3 |\n"
    assert repeated(page) == {}
    assert repeated(page + "| `x` | 4 |\n").keys() == {"B: x"}
    assert repeated(page + "## A\n").keys() == {"A"}
