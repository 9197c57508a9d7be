"""Pages are found by a scan of their texts, and imported only when they are opened."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from modules.ui.pages.registry import PAGES, page_of, pages_for, scan
from modules.util.config.settings import iter_settings
from modules.util.config.TrainConfig import TrainConfig
from tests.source_tree import ROOT, nodes, sources

ADDED = """
from modules.ui.pages.PageSpec import PageSpec

PAGE = PageSpec("{key}", "{key}", order={order}, module="{key}Page")
"""


def package(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, **pages: int) -> str:
    """The name of a fresh package of texts with these pages: key -> order."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("", encoding="utf-8")
    (folder / name / "no_page.py").write_text('TEXT = "a text"\n', encoding="utf-8")
    for key, order in pages.items():
        (folder / name / f"{key.lower()}.py").write_text(ADDED.format(key=key, order=order), encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    return name


def test_a_file_of_texts_with_an_entry_is_a_page(tmp_path, monkeypatch):
    found = scan(package(tmp_path, "texts_of_three_pages", monkeypatch, Late=30, Early=5, Middle=20))
    assert [page.key for page in found] == ["Early", "Middle", "Late"]
    assert [page.module for page in found] == ["EarlyPage", "MiddlePage", "LatePage"]


def test_two_pages_in_one_place_are_refused(tmp_path, monkeypatch):
    name = package(tmp_path, "texts_of_two_pages", monkeypatch, One=10, Other=10)
    with pytest.raises(RuntimeError, match="the order 10"):
        scan(name)


def test_every_page_has_its_class_and_every_class_its_page():
    written = {
        source.path.stem: {node.name for node in nodes(source, ast.ClassDef)}
        for source in sources("modules")
        if source.relative.startswith("modules/ui/pages/") and source.path.stem.endswith("Page")
    }
    assert all(name in classes for name, classes in written.items())
    assert {page.module for page in PAGES} == written.keys() - {"Page"}


def test_every_setting_is_on_a_page():
    settings = {setting.path: setting for setting in iter_settings(TrainConfig)}
    pages = pages_for(settings)
    assert pages == PAGES
    shown = {page_of(pages, setting).key for setting in settings.values()}
    assert shown == {page.key for page in PAGES if page.sections}


def test_the_window_imports_no_page_before_it_is_opened():
    code = (
        "import sys, modules.ui.MainWindow\n"
        "print(*sorted(n for n in sys.modules if n.startswith('modules.ui.pages.')))"
    )
    made = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert made.stdout.split() == [f"modules.ui.pages.{name}" for name in ("Page", "PageSpec", "registry")]


def test_the_number_of_a_page_is_the_one_people_know() -> None:
    numbered = [page.key for page in PAGES if not page.key_name]
    assert numbered == [
        "project", "model", "data", "training", "lora", "rlhf", "sampling", "backup", "tools", "run", "runs",
    ]  # fmt: skip
