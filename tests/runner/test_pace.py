"""The time of a step in earlier runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from modules.runner.known_runs import note_run
from modules.runner.pace import kind_of, last_pace, pace_of
from modules.runner.RunDirectory import RunDirectory
from modules.util.config.TrainConfig import TrainConfig
from modules.util.files.user_folder import FOLDER_VARIABLE


def run_with(
    folder: Path, events: list[dict[str, Any]], config: dict[str, Any] | None = None
) -> RunDirectory:
    run = RunDirectory(folder).create()
    lines = [json.dumps({"seq": number, **event}) for number, event in enumerate(events, 1)]
    run.events_path.write_text("\n".join(lines) + "\n")
    run.write_config(config or {})
    return run


def step(when: float, number: int) -> dict[str, Any]:
    return {"t": when, "kind": "step", "progress": {"global_step": number}}


def started(when: float, number: int = 0) -> dict[str, Any]:
    return {"t": when, "kind": "run_started", "progress": {"global_step": number}}


def command(when: float, name: str) -> dict[str, Any]:
    return {"t": when, "kind": "command", "command": name, "state": "done", "id": "x"}


def test_the_first_step_and_pauses_do_not_count(tmp_path: Path) -> None:
    events = [
        started(0), step(50, 1), step(52, 2), command(53, "pause"), command(153, "resume"), step(155, 3), step(158, 5),
    ]  # fmt: skip
    found = pace_of(run_with(tmp_path / "a", events))
    assert found is not None and found.steps == 4
    assert math.isclose(found.seconds, (158 - 50 - 100) / 4)


def test_online_training_counts_the_images_made_before_the_first_step(tmp_path: Path) -> None:
    run = run_with(tmp_path / "a", [started(10), step(40, 1), step(42, 2), step(44, 4)])
    online, offline = pace_of(run, online=True), pace_of(run)
    assert online is not None and math.isclose(online.seconds, 34 / 4)
    assert offline is not None and math.isclose(offline.seconds, 4 / 3)


def test_the_last_start_counts_and_one_without_two_steps_does_not(tmp_path: Path) -> None:
    events = [
        started(0),
        step(10, 1),
        step(20, 2),
        started(100, 2),
        step(110, 3),
        step(113, 4),
        started(200, 4),
    ]
    found = pace_of(run_with(tmp_path / "a", events))
    assert found is not None and math.isclose(found.seconds, 3.0)
    assert pace_of(run_with(tmp_path / "b", [started(0), step(9, 1)])) is None
    assert pace_of(RunDirectory(tmp_path / "nowhere")) is None


def test_the_newest_run_of_the_same_kind_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "settings"))
    wanted = TrainConfig().to_dict()
    for name, seconds, changes in (
        ("old", 2.0, {}),
        ("rate", 3.0, {"learning_rate": 0.5, "epochs": 77}),
        ("batch", 9.0, {"batch_size": 4}),
        ("mode", 9.0, {"rlhf_enabled": True}),
        ("rank", 9.0, {"lora_rank": 128}),
        ("part", 9.0, {"unet": {**wanted["unet"], "gradient_checkpointing": False}}),
        ("mix", 9.0, {"rlhf_supervised_mix": 0.2}),
    ):
        run = run_with(tmp_path / name, [started(0), step(1, 1), step(1 + seconds, 2)], {**wanted, **changes})
        note_run(run.path)
    note_run(tmp_path / "gone")
    found = last_pace(wanted)
    assert found is not None and found.source == tmp_path / "rate" and math.isclose(found.seconds, 3.0)
    assert last_pace({**wanted, "batch_size": 3}) is None
    other_mix = last_pace({**wanted, "rlhf_supervised_mix": 0.1})
    assert other_mix is not None and other_mix.source == tmp_path / "mix"
    # a run of an earlier version has no value for settings that came later
    assert kind_of({}) == kind_of(wanted) == kind_of({"unet": {"learning_rate": 0.1}, "acceleration": []})
