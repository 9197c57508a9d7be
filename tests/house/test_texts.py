"""Generated pages of the documentation name each thing once where it belongs; texts of the window are in one place."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.house.exceptions import breaches
from tests.source_tree import ROOT, Source, parsed, sources

PAGES = ("docs/config.md",)
ALLOWED: dict[str, str] = {}
WINDOW, TEXTS = "modules/ui/", "modules/ui/texts/"
NOT_SHOWN = {
    "modules/ui/demo/demo_project.py: a ": "a prompt of the demo, which the model was trained on",
    "modules/ui/demo/demo_project.py: #demo dpo.json": "the name of a preset's file",
    "modules/ui/run/TensorBoard.py: import os": "a program in Python",
    "modules/ui/widgets/Chooser.py: catch {tk_getOpenFile": "a command of Tcl",
    "modules/ui/widgets/theme.py: selected ": "states of a widget, as ttk names them",
}
"""Beginnings of strings with spaces that nobody reads in the window."""
_OWN_PLURAL = re.compile(r"""['"]s['"] (\*|if) |\w\(s\)[ '"]""")
_WORDS = re.compile(r"[^\W\d_]{2,}")
_ERRORS = re.compile(r"\w*Errors?")
_ELSEWHERE = {
    "log", "logging", "re", "argparse", "parser", "made", "read_json", "parse_json", "load_list", "add_argument",
    "write",
}  # fmt: skip
"""Calls whose texts go to the log, to the command line or into a message of an error."""


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


def _strings(node: ast.AST) -> Iterator[ast.Constant]:
    """Strings below a node, without docstrings and without those of errors, of the log and of the command line."""
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func).split(".")
        if _ERRORS.fullmatch(called[-1]) or called[0] in _ELSEWHERE or called[-1] in _ELSEWHERE:
            return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _strings(child)


def loose_texts(source: Source) -> dict[str, str]:
    """Strings with a space and a word in a file of the window."""
    return {
        f"{source.relative}: {found.value}": f"line {found.lineno}: belongs into {TEXTS}"
        for found in _strings(source.tree)
        if isinstance(found.value, str) and " " in found.value and _WORDS.search(found.value)
    }


def test_texts_of_the_window_are_in_their_folder():
    found: dict[str, str] = {}
    for source in sources("modules"):
        if source.relative.startswith(WINDOW) and not source.relative.startswith(TEXTS):
            found |= loose_texts(source)
    allowed = {name: why for name in found for start, why in NOT_SHOWN.items() if name.startswith(start)}
    faults = breaches(found, allowed)
    assert not faults, "\n".join(faults)
    unneeded = [start for start in NOT_SHOWN if not any(name.startswith(start) for name in found)]
    assert not unneeded, unneeded


@pytest.mark.parametrize(
    ("code", "bad"),
    [
        ('label(text="Two words")', True),
        ('TIPS = (("a", "Two words"),)', True),
        ('label(text=f"{number} images")', True),
        ('say("Saved " + name)', True),
        ('label(text="One")', False),
        ('label(text=words.TWO_WORDS)', False),
        ('raise UserError("this is wrong", hint=f"try {other} instead")', False),
        ('log.warning("it is %s", name)', False),
        ('"""Two words."""', False),
        ('label(text="   \\u2192   ")', False),
    ],
)  # fmt: skip
def test_a_loose_text_is_found(code, bad):
    assert bool(loose_texts(parsed(code, "modules.ui.x"))) == bad


def test_plurals_have_one_place():
    """``1 pair``, ``2 pairs`` come from ``counted``, not from an s that is put behind a word."""
    found = {
        f"{source.relative}:{number}": line.strip()
        for source in sources("modules", "scripts")
        for number, line in enumerate(source.text.splitlines(), 1)
        if _OWN_PLURAL.search(line) and source.relative != "modules/util/counted.py"
    }
    assert not found, found


@pytest.mark.parametrize(
    "line", ["f\"{n} pair{'s' * (n != 1)}\"", "f\"{n} pair{'s' if n > 1 else ''}\"", "'image(s) left'"]
)
def test_an_own_plural_is_found(line):
    assert _OWN_PLURAL.search(line)
