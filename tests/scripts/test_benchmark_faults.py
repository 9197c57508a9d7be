"""The benchmark of faults prints figures with what is allowed, and fails when one is above it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import benchmark
from tests.faults import campaign
from tests.faults.campaign import Row


@pytest.mark.parametrize(("value", "status"), [(0, 0), (1, 1)])
def test_a_figure_above_what_is_allowed_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    value: int,
    status: int,
) -> None:
    rows = [Row("kills: tried", 40), Row("kills: lost", value, 0)]
    monkeypatch.setattr(campaign, "campaign", lambda *_: (rows, ["pick ELO kill 3-: gone"] * value))
    assert benchmark.main(["faults", "--json", str(tmp_path / "faults.json")]) == status
    said = capsys.readouterr()
    assert ("OVER" in said.out) == ("gone" in said.err) == bool(value)
    written = json.loads((tmp_path / "faults.json").read_text())
    assert [(one["case"], one["ratio"], one["limit"]) for one in written] == [
        ("kills: tried", 40, None), ("kills: lost", value, 0),
    ]  # fmt: skip
    assert written[0]["seed"] == 1 and written[0]["machine"]["system"]
