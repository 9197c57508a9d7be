"""Where the time of steps goes: files that open, and the same weights."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.trainer.profile import sections
from modules.trainer.profile.sections import BACKWARD, FORWARD, NOISE, OPTIMIZER, REST, SECTIONS, SectionTimes
from scripts.train import main
from tests.trainer.builders import same_weights, write_config


def run(folder: Path, *arguments: str, **changes: Any) -> Path:
    config = write_config(folder, epochs=3, **changes)
    assert main(["--config-path", str(config), *arguments]) == 0
    return folder / "run" / "profile"


def shares(table: str) -> dict[str, tuple[float, float]]:
    rows = re.findall(r"^(.+?) {2,}([\d.]+) +([\d.]+)%$", table, re.MULTILINE)
    return {name: (float(spent), float(share)) for name, spent, share in rows}


def named(trace: Path) -> list[dict[str, Any]]:
    data = json.loads(gzip.decompress(trace.read_bytes()))
    return [event for event in data["traceEvents"] if event.get("cat") == "user_annotation"]


def test_a_profile_opens_and_the_weights_are_those_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not run(tmp_path / "plain").exists()
    folder = run(tmp_path / "profiled", "--profile", "2")
    assert same_weights(tmp_path / "plain" / "out.safetensors", tmp_path / "profiled" / "out.safetensors")
    table = (folder / "table.txt").read_text(encoding="utf-8")
    assert table in capsys.readouterr().out
    found = shares(table)
    assert list(found) == [*SECTIONS, "whole step"]
    assert sum(share for _, share in found.values()) == pytest.approx(200, abs=0.5)
    assert all(found[name][0] > 0 for name in SECTIONS)
    assert "steps 4 to 5" in table
    assert sorted(path.name for path in folder.iterdir()) == ["table.txt", "trace.json.gz"]
    events = named(folder / "trace.json.gz")
    assert {event["name"] for event in events} >= set(SECTIONS)
    assert sum(event["name"] == OPTIMIZER for event in events) == 2


def test_the_time_of_an_inner_part_is_not_that_of_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that says how often it was asked: the marks are one unit apart."""
    clock = iter(range(100))
    monkeypatch.setattr(sections.time, "perf_counter", lambda: float(next(clock)))
    times = SectionTimes(torch.device("cpu"))
    for _ in range(2):
        with times.within(REST):
            with times.within(NOISE):
                with times.within(FORWARD):
                    pass
                with times.within(BACKWARD):
                    assert times.inside(BACKWARD) and not times.inside(NOISE)
            with times.within(OPTIMIZER):
                pass
    found = {name: spent / 1000 for name, spent in times.milliseconds().items() if spent}
    assert found == {REST: 6, NOISE: 6, FORWARD: 2, BACKWARD: 2, OPTIMIZER: 2}


def test_a_run_too_short_for_the_warm_up_is_measured_all_the_same(tmp_path: Path) -> None:
    folder = run(tmp_path, "--profile", "100", batch_size=6)
    assert "steps 2 to 2" in (folder / "table.txt").read_text(encoding="utf-8")
    assert sum(event["name"] == OPTIMIZER for event in named(folder / "trace.json.gz")) == 1


@pytest.mark.gpu
def test_a_gpu_has_a_memory_history_too(tmp_path: Path) -> None:
    folder = run(tmp_path, "--profile", "1", train_device="cuda")
    assert sum(share for _, share in shares((folder / "table.txt").read_text(encoding="utf-8")).values())
    assert (folder / "memory.pickle").stat().st_size


@pytest.mark.parametrize("steps", ["0", "-1", "x", "1001"])
def test_a_wrong_number_of_steps_is_refused(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--config-path", "x.json", f"--profile={steps}"])
    assert ended.value.code == 2
    assert "number of steps from 1 to 1000" in capsys.readouterr().err
