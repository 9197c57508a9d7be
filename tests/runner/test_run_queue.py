"""The queue: order, damage, several programs, restarts in the middle of everything."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from modules.runner.launcher import launch
from modules.runner.ProcessId import ProcessId
from modules.runner.RunDirectory import RunDirectory
from modules.runner.RunQueue import QueueRunner, RunQueue
from modules.util.errors import DataError, UserError
from tests.changes import full_disk
from tests.runner.support import fake_command, wait_until


@pytest.fixture
def queue(tmp_path):
    queue = RunQueue(tmp_path / "queue.json")
    yield queue
    for entry in queue.entries():
        run = RunDirectory(entry.run_dir)
        for process in (run.launched(), run.trainer()):
            if process is not None:
                process.end(0.0)


def start(run: RunDirectory):
    return launch(run, command=fake_command(run, json.loads(run.config_path.read_text())["behaviour"]))


def add(queue: RunQueue, name: str, behaviour: str = "finish"):
    return queue.add(RunDirectory(queue.path.parent / name), {"behaviour": behaviour})


def states(queue: RunQueue) -> list[str]:
    return [entry.state for entry in queue.entries()]


def restarted(queue: RunQueue) -> QueueRunner:
    """The program starts again: a runner that has never heard of these trainers."""
    runner = QueueRunner(RunQueue(queue.path), start)
    runner.active = True
    return runner


def died(queue: RunQueue) -> None:
    """Let it look as if the program that looked after the queue were gone."""
    data = json.loads(queue.path.read_text())
    for entry in data["entries"]:
        if entry["starter"]:
            entry["starter"] = {"pid": os.getpid(), "started": "another boot:1"}
    queue.path.write_text(json.dumps(data))


def test_order_is_kept_and_changed(queue):
    a, b, c = (add(queue, name) for name in "abc")
    queue.move(c.id, 0)
    queue.move(a.id, 99)
    assert [entry.title for entry in RunQueue(queue.path).entries()] == ["c", "b", "a"]
    queue.remove(b.id)
    assert [entry.id for entry in queue.entries()] == [c.id, a.id]
    assert RunDirectory(b.run_dir).config_path.is_file()
    with pytest.raises(UserError, match="no entry"):
        queue.remove(b.id)
    queue.set_state(b.id, "finished")  # taken out meanwhile
    with pytest.raises(ValueError, match="asleep"):
        queue.set_state(a.id, "asleep")


def test_a_folder_is_in_the_queue_once_and_not_while_it_trains(queue):
    entry = add(queue, "a")
    with pytest.raises(UserError, match="already in the queue"):
        add(queue, "a")
    queue.set_state(entry.id, "failed", "why")
    add(queue, "a")
    busy = RunDirectory(queue.path.parent / "b")
    with busy.locked(), pytest.raises(UserError, match="training is running"):
        add(queue, "b")
    assert not busy.config_path.exists()
    queue.clear_ended()
    assert states(queue) == ["waiting"]


@pytest.mark.child
def test_runs_one_after_another(queue):
    for name, behaviour in (("a", "finish"), ("b", "SIGSEGV"), ("c", "refused"), ("d", "finish")):
        add(queue, name, behaviour)
    runner = QueueRunner(queue, start)
    runner.tick()
    assert set(states(queue)) == {"waiting"}
    runner.active = True

    def all_ended() -> bool:
        runner.tick()
        assert states(queue).count("running") <= 1
        return not {"waiting", "running"} & set(states(queue))

    wait_until(all_ended)
    assert states(queue) == ["finished", "failed", "failed", "finished"]
    notes = [entry.note for entry in queue.entries()]
    assert "SIGSEGV" in notes[1] and "rlhf_dpo_beta" in notes[2]


@pytest.mark.child
def test_a_running_entry_is_left_alone_until_stopped(queue):
    entry = add(queue, "a", "obey")
    runner = restarted(queue)
    runner.tick()
    for change in (queue.remove, queue.requeue):
        with pytest.raises(UserError, match="is running"):
            change(entry.id)
    run = RunDirectory(entry.run_dir)
    wait_until(run.trainer)
    run.post("stop")
    wait_until(lambda: runner.tick() or states(queue) == ["stopped"])
    queue.requeue(entry.id)
    (again,) = queue.entries()
    assert (again.state, again.note) == ("waiting", "")


@pytest.mark.child
def test_a_trainer_resumes_while_the_program_restarts(queue):
    entry = add(queue, "a", "obey")
    add(queue, "b", "finish")
    restarted(queue).tick()
    run = RunDirectory(entry.run_dir)
    trainer = wait_until(run.trainer)
    died(queue)
    runner = restarted(queue)
    runner.tick()
    assert states(queue) == ["running", "waiting"]
    assert run.trainer() == trainer
    run.post("stop")
    wait_until(lambda: runner.tick() or states(queue) == ["stopped", "finished"])


@pytest.mark.child
def test_an_end_while_no_program_was_there_is_noted(queue):
    add(queue, "a", "oom")
    runner = restarted(queue)
    runner.tick()
    runner._trainers.popitem()[1]._popen.wait()
    died(queue)
    runner = restarted(queue)
    runner.active = False
    runner.tick()
    (entry,) = queue.entries()
    assert (entry.state, entry.note) == ("failed", "the graphics card ran out of memory")


@pytest.mark.child
def test_a_turn_claimed_by_a_program_that_died_before_it_started_the_run_comes_again(queue):
    add(queue, "a", "finish")
    assert queue.claim_next().state == "running"
    assert queue.claim_next() is None
    died(queue)
    runner = restarted(queue)
    wait_until(lambda: runner.tick() or states(queue) == ["finished"])


@pytest.mark.child
def test_two_programs_do_not_look_after_the_same_run(queue):
    add(queue, "a", "finish")
    claimed = queue.claim_next()
    assert ProcessId.from_dict(claimed.starter) == ProcessId.own()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(_tick, (queue.path,))
    (entry,) = queue.entries()
    assert (entry.state, entry.starter) == ("running", claimed.starter)


def _tick(path: Path) -> None:
    restarted(RunQueue(path)).tick()


@pytest.mark.child
def test_a_start_that_fails_is_noted_and_the_next_one_comes(queue):
    entry = add(queue, "a")
    add(queue, "b")
    RunDirectory(entry.run_dir).config_path.unlink()

    def refuse_without_config(run):
        return start(run) if run.config_path.exists() else launch(run)

    runner = QueueRunner(queue, refuse_without_config)
    runner.active = True
    wait_until(lambda: runner.tick() or states(queue) == ["failed", "finished"])
    assert "config.json does not exist" in queue.entries()[0].note


def test_a_fault_of_the_program_is_noted_and_not_hidden(queue):
    add(queue, "a")
    runner = QueueRunner(queue, lambda run: 1 // 0)
    runner.active = True
    with pytest.raises(ZeroDivisionError):
        runner.tick()
    assert states(queue) == ["failed"]


def _add_many(path: Path, name: str) -> None:
    for number in range(10):
        add(RunQueue(path), f"{name}{number}")


@pytest.mark.child
def test_programs_that_add_at_once_lose_nothing(queue):
    context = multiprocessing.get_context("fork")
    programs = [context.Process(target=_add_many, args=(queue.path, name)) for name in "abc"]
    for program in programs:
        program.start()
    for program in programs:
        program.join()
    titles = [entry.title for entry in queue.entries()]
    assert len(titles) == len(set(titles)) == 30


def _hold_and_wait(path: Path, started) -> None:
    with RunQueue(path)._changing() as entries:
        entries.clear()
        started.set()
        signal.pause()


@pytest.mark.child
def test_a_program_killed_in_the_middle_of_a_change_leaves_the_old_queue(queue):
    add(queue, "a")
    context = multiprocessing.get_context("fork")
    started = context.Event()
    program = context.Process(target=_hold_and_wait, args=(queue.path, started))
    program.start()
    assert started.wait(10)
    program.kill()
    program.join()
    add(queue, "b")
    assert [entry.title for entry in queue.entries()] == ["a", "b"]


def test_a_queue_that_cannot_be_written_is_one_clear_error_and_stays(queue, tmp_path):
    add(queue, "a")
    before = queue.path.read_text()
    with full_disk("fsync"), pytest.raises(UserError, match="cannot be written: No space left"):
        queue.claim_next()
    assert queue.path.read_text() == before
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        RunQueue(tmp_path / "file" / "queue.json").clear_ended()


GOOD = {"id": "1", "run_dir": "/r", "title": "t"}


@pytest.mark.parametrize(
    "data",
    [
        [], {}, {"version": 2, "entries": []}, {"version": 1, "entries": {}}, {"version": 1, "entries": [7]},
        *(
            {"version": 1, "entries": [{**GOOD, **change}]}
            for change in (
                {"state": "asleep"}, {"id": ""}, {"run_dir": 7}, {"added": "now"}, {"starter": 1}, {"x": 1},
                {"title": None},
            )
        ),
        {"version": 1, "entries": [{"id": "1", "run_dir": "/r"}]},
    ],
)  # fmt: skip
def test_damaged_files_are_refused_and_kept(queue, data):
    text = json.dumps(data)
    queue.path.write_text(text)
    with pytest.raises(DataError) as caught:
        queue.entries()
    assert caught.value.hint
    with pytest.raises(DataError):
        add(queue, "a")
    assert queue.path.read_text() == text
    queue.path.unlink()
    assert queue.entries() == []


def test_an_entry_may_leave_out_what_has_a_default(queue):
    queue.path.write_text(json.dumps({"version": 1, "entries": [GOOD]}))
    (entry,) = queue.entries()
    assert (entry.state, entry.added, entry.starter) == ("waiting", 0.0, None)
