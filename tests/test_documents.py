"""Requirement files, imports and docs/dependencies.md agree; links in documents lead somewhere."""

from __future__ import annotations

import importlib.metadata
import re
import sys

import pytest

from tests.source_tree import ROOT, imports, sources

PAGE = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
OTHER_NAMES = {"PIL": "pillow", "yaml": "pyyaml"}
NOT_IMPORTED = {
    "accelerate": "peft requires it",
    "sentencepiece": "transformers reads T5 tokenizers that are published in its format with it",
}
BY_NAME = {"pytorch_optimizer": "modules/trainer/optim/optimizers.py"}
"""Packages that are imported through their name as text, and where."""


def same(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(file: str) -> dict[str, str]:
    """Package to version in a requirement file; every line is pinned exactly."""
    lines = [line.strip() for line in (ROOT / file).read_text().splitlines()]
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(pair) == 2 for pair in pairs), f"{file}: {pairs}"
    return {same(name): version for name, version in pairs}


def rows(heading: str) -> dict[str, str]:
    """Package to its row in a table of the page."""
    part = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", PAGE, re.M | re.S).group(1)
    lines = [line for line in part.splitlines() if re.match(r"\| \w[\w-]*( \*)? \|", line)]
    return {
        same(line.split("|")[1].replace("*", "").strip()): line for line in lines if "Package" not in line
    }


def imported() -> dict[str, str]:
    """Packages from outside that modules and scripts import, and one place of each."""
    found = dict(BY_NAME)
    for source in sources("modules", "scripts"):
        for one in imports(source):
            top = one.name.split(".")[0]
            if top not in sys.stdlib_module_names and top not in ("modules", "scripts"):
                found.setdefault(OTHER_NAMES.get(top, top), f"{source.relative}:{one.line}")
    return {same(name): place for name, place in found.items()}


def test_the_page_has_every_package_and_no_other():
    assert set(rows("The program")) == set(pinned("requirements.txt"))
    assert set(rows("Tests and checks")) == set(pinned("requirements-dev.txt"))
    direct = set(rows("The program")) | set(rows("Tests and checks"))
    assert set(rows("What comes with them")) == set(pinned("constraints.txt")) - direct


def test_every_row_is_filled_in():
    tables = [rows(name) for name in ("The program", "Optional", "Tests and checks", "What comes with them")]
    assert all(tables)
    for table in tables:
        for name, line in table.items():
            assert all(cell.strip() for cell in line.strip("|").split("|")), name


def test_direct_requirements_have_the_constrained_version():
    constraints = pinned("constraints.txt")
    for file in ("requirements.txt", "requirements-dev.txt"):
        for name, version in pinned(file).items():
            assert constraints[name] == version, f"{file}: {name}"


def test_what_is_imported_is_required_or_marked():
    marked = {name for name, line in rows("What comes with them").items() if " * |" in line}
    known = set(pinned("requirements.txt")) | marked | set(rows("Optional"))
    unknown = {name: place for name, place in imported().items() if name not in known}
    assert not unknown
    assert marked <= set(imported()), "no longer imported"


def test_what_is_required_is_imported():
    unused = set(pinned("requirements.txt")) - set(imported()) - set(NOT_IMPORTED)
    assert not unused
    for name, place in BY_NAME.items():
        assert f'"{name}"' in (ROOT / place).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(pinned("constraints.txt")))
def test_tests_run_with_the_pinned_versions(name):
    """What is tested here is what users get."""
    assert importlib.metadata.version(name).split("+")[0] == pinned("constraints.txt")[name]


def test_links_between_documents_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken, "\n".join(broken)


def test_commands_on_pages_run_as_they_are_shown():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    bare = [
        f"{page.relative_to(ROOT)}: {line.strip()}"
        for page in pages
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.match(r"(?: {4,}(?:python3? )?|python3? )scripts/\w+\.py\b", line)
    ]
    assert not bare, "begin with .venv/bin/python:\n" + "\n".join(bare)


def test_every_option_of_every_script_is_on_a_page():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    silent = [
        f"{script.name} {option}"
        for script in sorted((ROOT / "scripts").glob("*.py"))
        for option in re.findall(r"add_argument\(\s*\"(--[a-z-]+)\"", script.read_text(encoding="utf-8"))
        if not re.search(rf"(?<![\w-]){option}(?![\w-])", text)
    ]
    assert not silent, "name them where a reader would look:\n" + "\n".join(silent)


def test_everything_in_resources_has_an_origin_and_a_licence():
    part = re.search(r"^## Data that comes with the program$(.*?)(?=^## )", PAGE, re.M | re.S).group(1)
    named = set(re.findall(r"`resources/([\w.]+)`", part))
    assert named == {path.name for path in (ROOT / "resources").iterdir()}
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert not [name for name in named if f"resources/{name}" not in notice]
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").startswith("MIT License")
