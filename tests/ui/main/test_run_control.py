"""A run seen from the window: progress, curves, orders, how it ended. The trainer is a small script."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modules.runner.RunDirectory import RunDirectory
from modules.ui.state.RunControl import RunControl
from modules.util.display import duration
from modules.util.errors import UserError
from tests.ui.main.trainer import TRAINER

Watch = Callable[..., RunControl]


def until(control: RunControl, wanted: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < end, f"still {control.state}: {control.progress()}"
        control.poll()
        time.sleep(0.02)


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    made: list[RunControl] = []

    def start(*options: str, config: dict[str, object] | None = None) -> RunControl:
        control = RunControl(lambda run: [sys.executable, str(TRAINER), str(run.path), *options])
        control.start(tmp_path / "run", config or {"epochs": 2})
        made.append(control)
        return control

    yield start
    for control in made:
        if control.poll() or control.is_live:
            control.end_now()


@pytest.mark.slow
def test_a_run_from_start_to_end(watch: Watch) -> None:
    control = watch("--steps", "20")
    until(control, lambda: control.outcome is not None)
    assert control.state == "finished"
    outcome = control.take_outcome()
    assert outcome is not None and outcome.ok
    assert control.take_outcome() is None
    progress = control.progress()
    assert progress.run == 1.0
    assert "step 20 of 20" in progress.text
    series = control.history.series["loss/train_step"]
    assert series.steps == list(range(1, 21))
    assert [sample.step for sample in control.history.samples] == [0, 20]
    assert control.file(control.history.samples[0].path).is_file()


@pytest.mark.slow
def test_orders_are_answered(watch: Watch) -> None:
    control = watch("--steps", "100000", "--pace", "0.01")
    until(control, lambda: control.state == "running" and bool(control.history.series))
    control.post("pause")
    until(control, lambda: control.state == "paused")
    assert control.progress().text.startswith("Paused")
    control.post("resume")
    until(control, lambda: control.state == "running")
    before = len(control.history.samples)
    control.post("sample")
    until(control, lambda: len(control.history.samples) > before)
    control.post("stop")
    until(control, lambda: control.outcome is not None)
    assert control.state == "stopped"
    assert any("stop: done" in message.text for message in control.history.messages)


def test_another_window_finds_the_run_again(watch: Watch) -> None:
    first = watch("--steps", "100000", "--pace", "0.01")
    until(first, lambda: len(first.history.series) > 0)
    second = RunControl()
    assert first.run is not None
    second.follow(first.run.path)
    until(second, lambda: second.state == "running")
    assert second.history.series["loss/train_step"].steps[0] == 1
    with pytest.raises(UserError, match="already running"):
        second.start(first.run.path, {})
    second.post("stop")
    until(second, lambda: second.outcome is not None)
    assert second.state == "stopped"


@pytest.mark.slow
def test_running_out_of_memory_comes_with_advice(watch: Watch) -> None:
    control = watch("--steps", "10", "--fail", "memory")
    until(control, lambda: control.outcome is not None)
    outcome = control.take_outcome()
    assert outcome is not None and not outcome.ok
    assert outcome.category == "gpu_memory"
    assert "batch size" in outcome.hint
    assert control.state == "failed"
    assert control.status.error is not None


@pytest.mark.slow
def test_a_killed_trainer_is_noticed(watch: Watch) -> None:
    control = watch("--steps", "100000", "--pace", "0.01")
    until(control, lambda: control.state == "running")
    control.end_now()
    until(control, lambda: control.outcome is not None)
    assert control.state == "failed"
    assert not control.is_live


def test_no_run_is_no_progress() -> None:
    control = RunControl()
    assert not control.poll()
    assert control.state == "new"
    assert control.progress().text == ""


def test_epoch_share_from_the_settings_and_then_from_the_run(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path).create()
    run.config_path.write_text('{"epochs": 4}')
    with run.writer() as writer:
        writer.emit("run_started", total_steps=40, device="cpu")
        place = {"epoch": 0, "epoch_step": 5, "global_step": 5}
        writer.emit("step", progress=place, metrics={}, total_steps=40, eta=None)
        control = RunControl()
        control.follow(tmp_path)
        control.poll()
        assert control.progress().epoch == 0.5
        place = {"epoch": 2, "epoch_step": 2, "global_step": 22}
        writer.emit("step", progress=place, metrics={}, total_steps=40, eta=None)
        control.poll()
        assert control.progress().epoch == 0.2
        assert control.progress().run == 22 / 40


def test_work_that_is_no_step_is_shown_until_the_next_step(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path).create()
    with run.locked(), run.writer() as writer:
        writer.emit("run_started", total_steps=40)
        writer.emit("phase", name="caching", done=3, total=12)
        control = RunControl()
        control.follow(tmp_path)
        control.poll()
        assert control.progress().text == "Caching 3 of 12"
        assert control.progress().epoch == 0.25


def test_durations() -> None:
    assert [duration(s) for s in (0, 59.6, 61, 3723)] == ["0:00", "1:00", "1:01", "1:02:03"]
