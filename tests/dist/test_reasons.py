"""Of a run on several devices that fails, people read the error of the process that failed, whichever it was; and no
process outlives its launcher.

A launcher and what it starts import everything, which takes most of the time: in the usual run two processes without it
are told of each other.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from modules.runner.ProcessId import ProcessId
from modules.trainer.control.LauncherWatch import LAUNCHER_VARIABLE
from modules.trainer.control.PeerWatch import EXIT_STATUS
from tests.children.warm import run_warm
from tests.dist.group import Group
from tests.dist.test_listening import LAUNCHING
from tests.dist.test_torchrun import COMMON
from tests.trainer.builders import ROOT, environment, events, write_config

pytestmark = pytest.mark.dist

FAILING = ROOT / "tests" / "dist" / "failing.py"


def fail(folder: Path, rank: int, kind: str) -> subprocess.CompletedProcess[str]:
    config = write_config(folder, **COMMON)
    command = [sys.executable, "-c", LAUNCHING, str(FAILING), str(rank), kind, "--config-path", str(config)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment(), check=False, cwd=ROOT
    )


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_too_little_memory_on_any_device_is_reported_as_that(tmp_path: Path, rank: int) -> None:
    made = fail(tmp_path, rank, "memory")
    assert made.returncode == 1, made.stderr
    expect_too_little_memory(tmp_path, rank)


def test_too_little_memory_of_the_second_process_is_told_by_the_first(tmp_path: Path) -> None:
    config = write_config(tmp_path, **COMMON)
    both = Group(tmp_path, FAILING, "1", "memory", "--config-path", str(config)).processes
    try:
        assert [one.wait(60) for one in both] == [1, 1]
    finally:
        for one in both:
            one.kill()
    expect_too_little_memory(tmp_path, 1)


def expect_too_little_memory(folder: Path, rank: int) -> None:
    told = events(folder / "run")
    (error,) = [event for event in told if event["kind"] == "error"]
    assert error["category"] == "gpu_memory" and "CUDA out of memory" in error["message"]
    assert "gradient checkpointing" in error["hint"]
    assert ("process 1 " in error["message"]) == (rank == 1)
    assert told[-1]["status"] == "failed"


@pytest.mark.slow
def test_an_error_that_people_can_fix_keeps_its_place_and_its_remedy(tmp_path: Path) -> None:
    made = fail(tmp_path, 1, "user")
    assert made.returncode == 2, made.stderr
    (error,) = [event for event in events(tmp_path / "run") if event["kind"] == "error"]
    assert error["category"] == "user" and error["hint"] == "remove it"
    assert error["message"] == "process 1 ended with an error: concepts: an image is damaged"
    assert "start all processes again" not in made.stderr


@pytest.mark.slow
def test_the_cause_is_known_even_if_the_first_process_waits_in_a_library(tmp_path: Path) -> None:
    began = time.monotonic()
    made = fail(tmp_path, 1, "asleep-memory")
    assert made.returncode == 1 and time.monotonic() - began < 60, made.stderr
    assert "error: process 1 ended with an error: OutOfMemoryError: CUDA out of memory" in made.stderr


def started(config: Path) -> tuple[psutil.Process, list[psutil.Process]]:
    """A launcher, and the processes of the run, as soon as there are two."""
    launcher = psutil.Popen(
        [sys.executable, str(ROOT / "scripts" / "train.py"), "--config-path", str(config)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(),
    )  # fmt: skip
    end = time.monotonic() + 60
    while len(launcher.children()) < 2:
        assert launcher.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    return launcher, launcher.children()


@pytest.mark.parametrize("seconds", [0.0, pytest.param(3.0, marks=pytest.mark.slow)])
def test_processes_whose_launcher_is_killed_while_they_load_end_within_seconds(
    tmp_path: Path, seconds: float
) -> None:
    launcher, members = started(write_config(tmp_path, **COMMON, train_device="cpu,cpu"))
    time.sleep(seconds)
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    _, left = psutil.wait_procs(members, timeout=30)
    for process in left:
        process.kill()
    assert not left


def test_a_process_whose_launcher_is_gone_ends_before_it_loads_anything(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as launcher:
        one = ProcessId.of(launcher.pid)
        launcher.kill()
    assert one is not None
    group = {"WORLD_SIZE": "2", "RANK": "1", LAUNCHER_VARIABLE: json.dumps(one.to_dict())}
    arguments = ["--config-path", str(tmp_path / "there is none.json")]
    made = run_warm(ROOT / "scripts" / "train.py", arguments, 60, {**environment(), **group})
    assert made.returncode == EXIT_STATUS
    assert "the process that started this one was killed" in made.stderr and "none.json" not in made.stderr
