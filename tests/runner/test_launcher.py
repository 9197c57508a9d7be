"""Real processes: started, found again, ended, and what is said about how they ended."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from modules.runner.launcher import (
    TrainerProcess,
    attach,
    launch,
    log_tail,
    resume_point,
    settle,
    train_command,
    unfinished,
)
from modules.runner.RunDirectory import LAUNCHED_IN, MIRROR, RunDirectory
from modules.runner.status import read_status
from modules.util.errors import UserError
from tests.runner.fake_trainer import REFUSED
from tests.runner.support import fake_command, start_fake, wait_until

pytestmark = pytest.mark.child


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path / "a run")
    yield run
    for process in (run.launched(), run.trainer()):
        if process is not None:
            process.end(0.0)


def start(run: RunDirectory, behaviour: str) -> TrainerProcess:
    return launch(run, {"behaviour": behaviour}, fake_command(run, behaviour))


def kinds(run: RunDirectory) -> list[str]:
    return [event["kind"] for event in run.reader().poll()]


def test_it_trains_in_a_session_of_its_own(run):
    trainer = start(run, "obey")
    assert run.launched() == trainer.process
    wait_until(run.trainer)
    assert os.getsid(trainer.pid) == trainer.pid != os.getsid(0)
    assert trainer.poll() is None
    assert trainer.wait(timeout=0.1) is None
    assert read_status(run).state == "running"
    run.post("pause")
    wait_until(lambda: read_status(run).state == "paused")
    run.post("resume")
    wait_until(lambda: read_status(run).state == "running")
    run.post("stop")
    assert trainer.wait(30).category == "stopped"
    assert read_status(run).state == "stopped"
    assert kinds(run).count("run_finished") == 1


@pytest.mark.parametrize(
    ("behaviour", "category", "says"),
    [
        ("finish", "finished", "complete"),
        ("nothing", "finished", "without an error"),
        ("refused", "user", REFUSED),
        ("exit1", "bug", "status 1"),
        ("raise", "bug", "shapes do not fit"),
        ("oom", "gpu_memory", "graphics card ran out of memory"),
        ("SIGKILL", "memory", "SIGKILL"),
        ("SIGSEGV", "crash", "SIGSEGV"),
        ("SIGTERM", "killed", "SIGTERM"),
    ],
)
def test_how_it_ended_is_told_and_written_down_once(run, behaviour, category, says):
    trainer = start(run, behaviour)
    outcome = trainer.wait(30)
    assert outcome.category == category
    assert says in outcome.message
    assert trainer.poll() == outcome
    status = read_status(run)
    assert status.state == (category if outcome.ok else "failed")
    assert status.pid is None
    if outcome.ok:
        assert "error" not in kinds(run)
    else:
        assert (status.error["category"], status.error["message"]) == (category, outcome.message)
        assert status.error["hint"] == outcome.hint
    before = kinds(run)
    assert settle(run).category == category
    assert kinds(run) == before
    assert before.count("run_finished") == 1


def progress(step):
    return {"epoch": 0, "epoch_step": step, "epoch_sample": step, "global_step": step}


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([], "Training had not begun"),
        ([("run_started", 0, None)], "no backup yet: the next start begins at step 0 of 120"),
        (
            [("run_started", 0, None), ("backup", 12, None), ("backup", 48, None)],
            "resumes after step 48 of 120",
        ),
        (
            [("run_started", 0, None), ("backup", 48, None), ("run_started", 48, "b48")],
            "resumes after step 48 of 120",
        ),
        ([("backup", 48, None), ("run_started", 0, None)], "no backup yet"),
        (
            [("backup", 48, None), ("run_started", 0, None), ("backup", 7, None)],
            "resumes after step 7 of 120",
        ),
    ],
)
def test_the_step_it_resumes_from_is_named(run, events, says):
    run.create()
    with run.writer() as writer:
        for kind, step, resumed in events:
            total = {"total_steps": 120, "resumed_from": resumed} if kind == "run_started" else {}
            writer.emit(kind, progress=progress(step), **total)
    assert says in resume_point(run)


@pytest.mark.parametrize(
    ("status", "backup", "left"),
    [
        ("", 48, (48, 120)),
        ("stopped", 48, (48, 120)),
        ("failed", 48, (48, 120)),
        ("finished", 48, None),
        ("", 0, None),
    ],
)
def test_a_run_with_steps_and_a_backup_left_can_be_resumed(run, status, backup, left):
    run.create()
    with run.writer() as writer:
        writer.emit("run_started", total_steps=120, progress=progress(0), resumed_from=None)
        if backup:
            run.backup_dir.mkdir()
            writer.emit("backup", progress=progress(backup))
        writer.emit("step", progress=progress(53))
        if status:
            writer.emit("run_finished", status=status)
    assert unfinished(run) == left
    (run.backup_dir).rename(run.path / "elsewhere") if backup else None
    assert unfinished(run) is None


def test_a_killed_trainer_says_where_the_next_start_resumes_and_says_it_once(run):
    outcome = start(run, "SIGKILL").wait(30)
    assert outcome.hint.count("next start") + outcome.hint.count("had not begun") == 1
    assert settle(run) == outcome


def test_a_trainer_is_found_again_by_a_program_that_did_not_start_it(run):
    started = start(run, "obey")
    wait_until(run.trainer)
    found = attach(run)
    assert found.process == started.process
    assert found.poll() is None
    os.kill(started.pid, signal.SIGSEGV)
    started._popen.wait()  # reaped, as by the system after its starter has gone
    assert found.poll().category == "killed"
    assert read_status(run).state == "failed"
    assert attach(run) is None


def test_a_death_nobody_watched_is_explained_from_the_log(run):
    started = start(run, "oom")
    started._popen.wait()
    assert read_status(run).state == "died"
    assert settle(run).category == "gpu_memory"
    assert read_status(run).state == "failed"


def test_a_trainer_started_by_hand_is_found_and_old_logs_are_not_held_against_it(run):
    assert start(run, "oom").wait(30).category == "gpu_memory"
    by_hand = start_fake(run, "obey")
    found = wait_until(lambda: attach(run))
    assert found.pid == by_hand.pid
    wait_until(lambda: read_status(run).step is not None)
    by_hand.kill()
    by_hand.wait()
    outcome = found.poll()
    assert outcome.category == "killed"
    assert "stopped unexpectedly" in outcome.message


def test_ending_it_is_not_called_a_fault_of_the_machine(run):
    trainer = start(run, "obey")
    wait_until(run.trainer)
    trainer.end(grace=5.0)
    outcome = trainer.wait(10)
    assert (outcome.category, outcome.message) == ("killed", "the trainer was ended on request")
    trainer.end()
    assert run.trainer() is None
    again = start(run, "finish").wait(30)
    assert again.category == "finished"
    assert start(run, "SIGTERM").wait(30).message == "the trainer was ended from outside (SIGTERM)"


def test_an_attached_trainer_can_be_ended(run):
    start(run, "obey")
    wait_until(run.trainer)
    found = attach(run)
    found.end(grace=5.0)
    assert found.poll().message == "the trainer was ended on request"


def test_two_trainers_do_not_share_a_run(run):
    start(run, "obey")
    with pytest.raises(UserError, match="already running"):
        start(run, "obey")
    wait_until(run.trainer)
    second = start_fake(run, "obey")
    assert second.wait(30) == 1
    assert settle(run) is None  # somebody trains here


def test_a_trainer_that_is_cleaning_up_is_not_called_starting(run):
    assert read_status(run).state == "new"
    trainer = start(run, "linger")
    wait_until(lambda: "run_finished" in kinds(run) and run.trainer() is None)
    assert run.launched() is not None
    assert read_status(run).state == "finished"
    trainer.end(0.1)


def test_config_and_log_of_a_launch(run):
    start(run, "raise").wait(30)
    first = run.log_path.read_text()
    assert "shapes do not fit" in first
    start(run, "finish").wait(30)
    assert run.log_path.read_text().startswith(first)
    assert "shapes do not fit" not in log_tail(run)
    assert run.config_path.read_text() == '{\n  "behaviour": "finish"\n}\n'


def test_the_end_of_the_start_before_is_not_that_of_this_one(run):
    assert start(run, "finish").wait(30).category == "finished"
    assert start(run, "refused").wait(30).category == "user"
    assert start(run, "nothing").wait(30).message == "the process ended without an error"


def test_a_trainer_is_told_that_it_was_launched(run):
    code = f"import os; print(os.environ[{LAUNCHED_IN!r}])"
    launch(run, command=[sys.executable, "-c", code]).wait(30)
    assert log_tail(run) == f"{run.path}\n"


def test_the_tail_of_a_log_is_its_end_in_any_encoding(run):
    code = "import sys; sys.stdout.buffer.write(b'x' * 5000 + bytes([255]) + b' end')"
    launch(run, command=[sys.executable, "-c", code]).wait(30)
    assert log_tail(run, 8) == "xxx� end"
    run.log_path.unlink()
    assert log_tail(run) == ""


def test_what_keeps_it_from_starting_is_one_clear_error(run):
    with pytest.raises(UserError, match=r"config\.json does not exist"):
        launch(run)
    with pytest.raises(UserError, match="cannot be started"):
        launch(run, command=[str(run.path / "no such program")])
    assert read_status(run).state == "new"
    assert settle(run) is None
    assert attach(run) is None


def test_the_command_line_names_config_and_run(run):
    python, script, *rest = train_command(run)
    assert python == sys.executable
    assert script.endswith("train.py")
    assert rest == ["--config-path", str(run.config_path), "--run-dir", str(run.path)]


def test_helpers_still_holding_on_are_waited_for(run):
    """A verdict is given once nobody can still be writing."""
    trainer = start(run, "SIGKILL")
    trainer._popen.wait()
    with run.undisturbed() as alone:
        assert alone
        assert trainer.poll() is None
    assert trainer.wait(5).category == "memory"
    assert time.time() - read_status(run).updated < 60


def test_no_trainer_starts_among_the_files_of_a_run_elsewhere(run):
    (run.path / MIRROR).mkdir(parents=True)
    with pytest.raises(UserError, match="run on another computer") as caught:
        start(run, "finish")
    assert caught.value.field == "workspace_dir" and not run.config_path.exists()
