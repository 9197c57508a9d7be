"""A run waits for any live trainer of this computer that uses its device."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path

import pytest

from modules.runner.devices import device_of, overlap, run_using
from modules.runner.known_runs import FILE_NAME, known_runs, note_run, one_start_at_a_time
from modules.runner.launcher import launch
from modules.runner.RunDirectory import RunDirectory
from modules.runner.RunQueue import QueueRunner, RunQueue
from modules.util.errors import UserError
from tests.runner.support import fake_command, start_fake, wait_until


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("cuda", "cuda:0", True), ("cuda:0", "cuda:0", True), ("cuda:0", "cuda:1", False), ("cuda", "cuda:1", False),
        ("cpu", "cuda", False), ("cpu", "cpu", True), ("auto", "cuda:1", True), ("cpu", "auto", True),
        ("mps", "cpu", False), ("cuda:0,cuda:1", "cuda:1", True), ("cuda:1,cuda:2", "cuda", False),
        ("cuda:1,cuda:2", "cuda:2,cuda:3", True), ("cpu,cpu", "cpu", True), ("cpu,cpu", "cuda:0,cuda:1", False),
        ("cuda:00", "cuda", True), ("cuda:01,cuda:2", "cuda:1", True), ("cuda:10", "cuda:1", False),
    ],
)  # fmt: skip
def test_which_devices_may_be_the_same(one, other, same):
    assert overlap(one, other) is same
    assert overlap(other, one) is same


@pytest.fixture
def live(tmp_path):
    """Starts trainers that train until the test ends."""
    started = []

    def start(name: str, device: str, by_hand: bool = False) -> RunDirectory:
        run = RunDirectory(tmp_path / name).create()
        run.config_path.write_text(json.dumps({"train_device": device}))
        started.append(run)
        if by_hand:
            start_fake(run, "obey")
        else:
            launch(run, command=fake_command(run, "obey"))
        wait_until(run.trainer)
        return run

    yield start
    for run in started:
        for process in (run.launched(), run.trainer()):
            if process is not None:
                process.end(0.0)


@pytest.mark.child
@pytest.mark.parametrize("by_hand", [False, True], ids=["launched", "started by hand"])
def test_a_live_trainer_is_found_by_its_device(live, by_hand):
    run = live("a", "cuda:1", by_hand)
    found = run_using("cuda:1")
    assert found is not None and found.path == run.path
    assert run_using("cuda:0") is None
    assert run_using("auto", besides=run) is None
    run.post("stop")
    wait_until(lambda: run_using("cuda:1") is None)


def test_auto_is_what_the_trainer_says_it_is(tmp_path):
    run = RunDirectory(tmp_path / "a")
    with run.locked():
        assert device_of(run) == "auto"
        assert run_using("cuda:0") is not None
        run.compute_on("cpu")
        assert run_using("cuda:0") is None
        assert run_using("cpu") is not None
    assert run_using("cpu") is None


def queued(tmp_path: Path, device: str) -> RunQueue:
    queue = RunQueue(tmp_path / "queue.json")
    queue.add(RunDirectory(tmp_path / "queued"), {"train_device": device, "behaviour": "finish"})
    return queue


def start(run: RunDirectory):
    return launch(run, command=fake_command(run, "finish"))


@pytest.mark.child
def test_the_queue_waits_for_a_trainer_that_it_did_not_start_and_says_so(live, tmp_path):
    other = live("other", "cuda")
    queue = queued(tmp_path, "cuda:0")
    runner = QueueRunner(queue, start)
    runner.active = True
    for _ in range(3):
        runner.tick()
    (entry,) = queue.entries()
    assert entry.state == "waiting"
    assert entry.note == f"waits for the run in {other.path}, which uses cuda:0"
    other.post("stop")
    wait_until(lambda: runner.tick() or queue.entries()[0].state == "finished")


@pytest.mark.child
def test_the_queue_does_not_wait_for_another_device(live, tmp_path):
    live("other", "cpu")
    queue = queued(tmp_path, "cuda")
    runner = QueueRunner(queue, start)
    runner.active = True
    wait_until(lambda: runner.tick() or queue.entries()[0].state == "finished")


@pytest.mark.child
def test_a_run_whose_folder_is_being_trained_in_waits_and_is_not_lost(live, tmp_path):
    queue = queued(tmp_path, "cpu")
    other = live("queued", "cpu")
    runner = QueueRunner(queue, start)
    runner.active = True
    runner.tick()
    assert queue.entries()[0].state == "waiting"
    other.post("stop")
    wait_until(lambda: runner.tick() or queue.entries()[0].state == "finished")


def _start_if_free(folder: Path, name: str) -> None:
    with one_start_at_a_time():
        if run_using("cuda:0") is None:
            run = RunDirectory(folder / name).create()
            run.config_path.write_text('{"train_device": "cuda:0"}')
            launch(run, command=fake_command(run, "obey"))


@pytest.mark.child
def test_of_programs_that_start_at_once_one_trains(tmp_path):
    context = multiprocessing.get_context("fork")
    programs = [context.Process(target=_start_if_free, args=(tmp_path, name)) for name in "abc"]
    for program in programs:
        program.start()
    for program in programs:
        program.join()
    live = [run for run in map(RunDirectory, known_runs()) if run.launched() is not None]
    for run in live:
        run.launched().end(0.0)
    assert len(live) == 1


def test_a_damaged_or_read_only_list_keeps_nobody_from_training(own_settings, tmp_path, monkeypatch, caplog):
    (own_settings / FILE_NAME).write_text("{")
    assert known_runs() == []
    with RunDirectory(tmp_path / "a").locked():
        assert [path.name for path in known_runs()] == ["a"]
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "a" / "config.json"))
    (tmp_path / "a" / "config.json").write_text("{}")
    with RunDirectory(tmp_path / "b").locked(), one_start_at_a_time():
        assert known_runs() == []
    assert "will not see the run" in caplog.text


def test_the_list_is_bounded_and_names_a_run_once(monkeypatch, tmp_path):
    monkeypatch.setattr("modules.runner.known_runs.MAX_RUNS", 3)
    for name in "abacd":
        note_run(tmp_path / name)
    assert [path.name for path in known_runs()] == ["a", "c", "d"]


def test_a_program_that_hangs_while_it_starts_a_run_is_named(monkeypatch):
    monkeypatch.setattr("modules.runner.known_runs.START_SECONDS", 0.1)
    begin = time.monotonic()
    with (
        one_start_at_a_time(),
        pytest.raises(UserError, match="does not respond"),
        one_start_at_a_time(),
    ):
        pass
    assert time.monotonic() - begin < 5
