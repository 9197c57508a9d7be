"""The start-up benchmark runs and reports what it promises; how fast the machine is, is not a test."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from modules.ui.pages.registry import PAGES
from scripts import benchmark
from scripts.benchmarks import startup


@pytest.fixture
def started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first start of each program, which is not measured, is taken for the measured one too."""
    start, found = startup.start_once, list[dict[str, Any]]()

    def once(env: dict[str, str]) -> dict[str, Any]:
        if not found:
            found.append(start(env))
        return found[0]

    monkeypatch.setattr(startup, "start_once", once)
    monkeypatch.setattr(startup, "help_seconds", cache(startup.help_seconds))


@pytest.mark.gui
@pytest.mark.usefixtures("started_once")
def test_one_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "startup.json"
    assert benchmark.main(["startup", "--rounds", "1", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())
    summary = rows[0]
    assert summary["window_cpu_seconds"] > 0 and 0 < summary["window_seconds"] < 60
    assert list(summary["pages"]) == [page.title for page in PAGES[1:]]
    assert all(0 < seconds < 30 for seconds in summary["pages"].values())
    assert set(summary["help_seconds"]) == {"train_ui.py", "train.py"}
    assert all(row["limit"] == 1.0 and row["seconds"] > 0 for row in rows)
    shown = capsys.readouterr().out
    assert "page Run" in shown and "window, as share of 1 s" in shown
