"""The memory benchmark predicts what a step takes, and shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.trainer.memory.memory_step import StepBytes
from scripts.benchmark import main
from scripts.benchmarks.memory import Taken, _compared


def test_a_step_is_predicted_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "memory.json"
    arguments = ["memory", "--cases", "one after the other", "--real", "--check", "--json", str(file)]
    assert main(arguments) == 0
    found = json.loads(file.read_text(encoding="utf-8"))
    assert [line["case"] for line in found] == ["one after the other: alive", "one after the other: saved"]
    for line in found:
        assert line["predicted_bytes"] == pytest.approx(line["measured_bytes"], rel=0.15)
        assert line["ratio"] <= line["limit"] and line["within"]
    assert found[0]["measured_bytes"] > found[1]["measured_bytes"] > 0
    said = capsys.readouterr().out
    assert "predicted" in said and f"{found[0]['measured_bytes'] / 2**20:.1f} MiB" in said


def test_too_little_is_as_wrong_as_too_much() -> None:
    for predicted in (50, 200):
        alive, saved = _compared("m", "c", StepBytes(saved=100, peak=predicted), Taken(peak=100, saved=100))
        assert alive.ratio == 2.0 and not alive.within
        assert saved.ratio == 1.0 and saved.within


def test_saved_bytes_are_left_out_where_they_are_unknown() -> None:
    (alive,) = _compared("m", "c", StepBytes(saved=10, peak=110), Taken(peak=100, saved=None))
    assert alive.case == "c: alive" and alive.within
