"""The documentation becomes a site, without a network; its links and anchors lead somewhere, and it loads nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.source_tree import ROOT

CONFIG = ROOT / "zensical.toml"
pytestmark = pytest.mark.child


class Page(HTMLParser):
    """What a page links to, loads and can be reached by."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag != "a":
            self.loads += [found[name] for name in ("src", "href") if name in found]


def build(folder: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The site of a folder with ``docs`` and the config; no proxy answers, so a network would not help."""
    environment = {"PATH": "", "https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    return folder / "site", done


def faults(site: Path) -> Iterator[str]:
    """Links and files that lead nowhere, and what comes from elsewhere."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    assert len(pages) > 20
    for path, page in pages.items():
        where = path.relative_to(site)
        for address in [*page.links, *page.loads]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.loads:
                    yield f"{where} loads {address}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                yield f"{where}: {address}"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{where}: there is no {address}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documentation")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(CONFIG, folder)
    found, done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return found


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    found = list(faults(site))
    assert not found, "\n".join(found)


def test_every_page_is_in_the_menu_once() -> None:
    listed: list[str] = []
    waiting = [*tomllib.loads(CONFIG.read_text(encoding="utf-8"))["project"]["nav"]]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            listed.append(one)
        else:
            waiting += one.values() if isinstance(one, dict) else one
    pages = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
    assert sorted(listed) == pages, "zensical.toml lists each page of docs"


def test_a_broken_link_stops_the_build(site: Path) -> None:
    folder = site.parent / "broken"
    (folder / "docs").mkdir(parents=True)
    (folder / "docs" / "index.md").write_text("# A\n[b](gone.md)\n[c](#gone)\n")
    (folder / "zensical.toml").write_text('[project]\nsite_name = "A"\n')
    done = build(folder)[1]
    assert done.returncode != 0
    assert "2 issues" in done.stdout + done.stderr


def test_the_pins_are_the_same() -> None:
    pin = [line for line in (ROOT / "requirements-docs.txt").read_text().splitlines() if line[:1] != "#"]
    assert pin
    assert set(pin) <= set((ROOT / "requirements-dev.txt").read_text().splitlines())
