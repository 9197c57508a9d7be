"""A process that is killed or stopped ends the others, with a reason, and the run can be resumed.

torchrun and what it starts import everything, which takes most of the time: in the usual run two processes without it
are told of each other.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from modules.trainer.control.PeerWatch import EXIT_STATUS
from tests.dist import group as forks
from tests.dist.group import run_two
from tests.dist.test_torchrun import COMMON, torchrun
from tests.trainer.builders import ROOT, environment, events, same_weights, write_config

pytestmark = pytest.mark.dist

IMPATIENT = ROOT / "tests" / "dist" / "impatient.py"
LONG = {**COMMON, "epochs": 60, "backup_after": 4, "backup_after_unit": "STEP"}
BOUND = 90.0
"""Seconds that the rest may take to end: torchrun asks a stopped process for 30 seconds before it kills it."""


class Group:
    """A run of two processes under way.

    Args:
        command: how it is started.
        run: its folder.
    """

    def __init__(self, command: list[str], run: Path) -> None:
        self.run = run
        self.output = run.parent / "output.txt"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=environment())

    def member(self, rank: int) -> psutil.Process:
        """One of its processes."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if child.environ().get("RANK") == str(rank):
                return child
        raise LookupError(rank)

    def wait_until(self, file: str, text: str) -> None:
        """Until a file of the run says something."""
        end = time.monotonic() + 120
        while not ((self.run / file).exists() and text in (self.run / file).read_text(encoding="utf-8")):
            assert self.process.poll() is None and time.monotonic() < end, self.said()
            time.sleep(0.05)

    def ended(self) -> str:
        """What it printed; it ends by itself, in time and with an error."""
        try:
            assert self.process.wait(BOUND) != 0
        except subprocess.TimeoutExpired:
            members = psutil.Process(self.process.pid).children(recursive=True)
            for one in [*members, self.process]:
                one.kill()
            pytest.fail(f"still there after {BOUND} seconds: {self.said()}")
        return self.said()

    def said(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")


def impatient(config: Path, sleeper: int = -1) -> list[str]:
    return [*torchrun(config)[:-3], str(IMPATIENT), str(sleeper), "--config-path", str(config)]


def test_a_killed_process_ends_the_other_without_a_launcher(tmp_path: Path) -> None:
    config, run = write_config(tmp_path, **LONG), tmp_path / "run"
    first, other = forks.Group(tmp_path, IMPATIENT, "-1", "--config-path", str(config)).processes
    end = time.monotonic() + 120
    while not (run / "events.jsonl").exists() or '"backup"' not in (run / "events.jsonl").read_text("utf-8"):
        assert first.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    other.kill()
    try:
        assert first.wait(BOUND) == EXIT_STATUS
    finally:
        first.kill()
    expect_told(run, (tmp_path / "output-0.txt").read_text(encoding="utf-8"))


def expect_told(run: Path, said: str) -> None:
    """A run tells on the terminal and in its events that its second process was killed."""
    assert "error: process 1 was killed" in said and "continue_last_backup" in said
    told = events(run)
    (error,) = [e for e in told if e["kind"] == "error"]
    assert (error["message"], error["category"]) == ("process 1 was killed", "killed")
    assert told[-1]["status"] == "failed"


@pytest.mark.slow
def test_a_killed_process_ends_the_other_and_says_so(tmp_path: Path) -> None:
    group = Group(torchrun(write_config(tmp_path, **LONG)), tmp_path / "run")
    group.wait_until("events.jsonl", '"backup"')
    os.kill(group.member(1).pid, signal.SIGKILL)
    said = group.ended()
    expect_told(group.run, said)
    assert "scripts/train.py" not in said.partition("Traceback")[2].partition("ChildFailedError")[0]


@pytest.mark.slow
def test_a_run_that_lost_a_process_resumes_bit_equal(tmp_path: Path) -> None:
    changes = {**LONG, "epochs": 10}
    run_two(write_config(tmp_path / "one", **changes))
    config = write_config(tmp_path / "two", **changes)
    group = Group(torchrun(config), tmp_path / "two" / "run")
    group.wait_until("events.jsonl", '"backup"')
    os.kill(group.member(0).pid, signal.SIGKILL)
    assert "error: process 0 was killed" in group.ended()
    run_two(config, "--set", "continue_last_backup=true")
    resumed = next(e for e in reversed(events(group.run)) if e["kind"] == "run_started")
    assert resumed["progress"]["global_step"] >= 4
    assert same_weights(tmp_path / "one" / "out.safetensors", tmp_path / "two" / "out.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_process_ends_the_other_in_time(tmp_path: Path, rank: int) -> None:
    config = write_config(tmp_path, **LONG)
    group = Group(impatient(config), tmp_path / "run")
    group.wait_until("events.jsonl", '"step"')
    member = group.member(rank)
    member.suspend()
    try:
        said = group.ended()
    finally:
        if member.is_running():
            member.kill()
    assert f"error: process {rank} has not responded for 12 seconds" in said


@pytest.mark.slow
def test_a_process_that_waits_in_a_library_is_ended(tmp_path: Path) -> None:
    config = write_config(tmp_path, **LONG)
    group = Group(impatient(config, sleeper=0), tmp_path / "run")
    group.wait_until("stepped0", "")
    os.kill(group.member(1).pid, signal.SIGKILL)
    began = time.monotonic()
    assert "error: process 1 was killed" in group.ended()
    assert time.monotonic() - began < 60
