"""A signal to one of two processes: the run stops with a backup or ends with a reason, and resumes to equal weights."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from modules.trainer.resume.checkpoint import find_backup
from tests.dist.group import run_two
from tests.dist.test_lost_process import LONG, Group
from tests.dist.test_torchrun import torchrun
from tests.trainer.builders import events, same_weights, write_config

pytestmark = [pytest.mark.dist, pytest.mark.slow]
CHANGES = {**LONG, "epochs": 10}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the run saves if nothing happens to it."""
    folder = tmp_path_factory.mktemp("whole")
    run_two(write_config(folder, **CHANGES))
    return folder / "out.safetensors"


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_either_process_may_be_asked_to_stop(
    tmp_path: Path, whole: Path, number: signal.Signals, rank: int
) -> None:
    config = write_config(tmp_path, **CHANGES)
    group = Group(torchrun(config), tmp_path / "run")
    group.wait_until("events.jsonl", '"backup"')
    group.member(rank).send_signal(number)
    group.process.wait(120)
    assert "Traceback" not in group.said().partition("ChildFailedError")[0], group.said()
    assert events(group.run)[-1]["status"] in ("stopped", "finished")
    assert find_backup(tmp_path / "run" / "backup")[0] is not None
    run_two(config, "--set", "continue_last_backup=true")
    assert same_weights(whole, tmp_path / "out.safetensors")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_pauses_for_a_moment_changes_nothing(tmp_path: Path, whole: Path, rank: int) -> None:
    group = Group(torchrun(write_config(tmp_path, **CHANGES)), tmp_path / "run")
    group.wait_until("events.jsonl", '"backup"')
    member = group.member(rank)
    member.suspend()
    time.sleep(2.0)
    member.resume()
    assert group.process.wait(120) == 0, group.said()
    assert same_weights(whole, tmp_path / "out.safetensors")
