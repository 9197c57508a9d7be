"""The launcher and runctl with the program's own trainer on a tiny model.

Most of the time goes into what a trainer imports. In the usual run, the one that trains is a fork that has it already.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from modules.runner import launcher
from modules.runner.launcher import launch
from modules.runner.RunDirectory import LAUNCHED_IN, RunDirectory
from modules.runner.status import read_status
from tests.children.warm import start_warm
from tests.runner.support import ROOT, page_rows, wait_until
from tests.trainer.builders import settings

pytestmark = pytest.mark.child


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run = RunDirectory(tmp_path / "run")
    yield run
    for process in (run.launched(), run.trainer()):
        if process is not None:
            process.end(0.0)


@pytest.fixture
def forked(monkeypatch):
    def spawn(line: list[str], run: RunDirectory, log: int) -> Any:
        _, script, *arguments = line
        env = {**os.environ, LAUNCHED_IN: str(run.path), "PYTHONUNBUFFERED": "1"}
        return start_warm(Path(script), arguments, run.log_path, run.log_path, env)

    monkeypatch.setattr(launcher, "_spawn", spawn)


def runctl(run: RunDirectory, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "runctl.py"), str(run.path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def steps_done(run: RunDirectory) -> int:
    step = read_status(run).step
    return step["progress"]["global_step"] if step else 0


def steer_kill_and_resume(run: RunDirectory, tmp_path: Path) -> None:
    sample = {"prompt": "a red circle", "width": 64, "height": 64, "diffusion_steps": 2}
    config = settings(tmp_path, epochs=100_000, samples=[sample])
    trainer = launch(run, config)
    wait_until(lambda: steps_done(run) >= 2, 120)
    assert read_status(run).state == "running"
    assert runctl(run, "pause", "--wait").stdout == "pause: done\n"
    paused_at = steps_done(run)
    backup = runctl(run, "backup", "--wait")
    assert backup.stdout.startswith("backup: done (")
    status = json.loads(runctl(run, "status", "--json").stdout)
    assert (status["state"], status["step"]["progress"]["global_step"]) == ("paused", paused_at)
    assert (run.path / status["files"]["backup"] / "manifest.json").is_file()
    for order in ("sample", "save"):
        assert runctl(run, order, "--wait").stdout.startswith(f"{order}: done (")
    assert list(run.path.glob("samples/**/*.jpg")) and list(run.path.glob("save/*.safetensors"))
    assert runctl(run, "resume", "--wait").returncode == 0
    wait_until(lambda: steps_done(run) > paused_at)

    os.kill(trainer.pid, signal.SIGKILL)
    assert trainer.wait(30).category == "memory"
    assert read_status(run).state == "failed"

    again = launch(run, {**config, "continue_last_backup": True})
    wait_until(lambda: read_status(run).state == "running" and steps_done(run) > paused_at, 120)
    started = [event for event in run.reader().poll() if event["kind"] == "run_started"]
    assert started[-1]["progress"]["global_step"] == paused_at
    assert runctl(run, "stop", "--wait").returncode == 0
    assert again.wait(30).category == "stopped"
    assert read_status(run).state == "stopped"
    for event in run.reader().poll():
        described = page_rows("Events")[event["kind"]]
        assert [
            name for name in event if name not in ("t", "seq", "kind") and f"`{name}`" not in described
        ] == []


@pytest.mark.slow
def test_a_run_is_steered_killed_and_resumes(run, tmp_path):
    steer_kill_and_resume(run, tmp_path)


@pytest.mark.usefixtures("forked")
def test_a_run_of_a_forked_trainer_is_steered_killed_and_resumes(run, tmp_path):
    steer_kill_and_resume(run, tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"learning_rates": 1}, "learning_rates"),
        pytest.param({"base_model_name": "no/such/folder/here"}, "no/such/folder/here", marks=pytest.mark.slow),
        pytest.param(
            {
                "concepts": [
                    {"name": s, "path": f"no-{s}", "type": f"DPO_{s}"} for s in ("CHOSEN", "REJECTED")
                ]
            },
            "no-REJECTED",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_the_user_can_put_right_reaches_the_user(run, tmp_path, changes, says):
    outcome = launch(run, settings(tmp_path, **changes)).wait(120)
    assert outcome.category == "user"
    assert says in outcome.message
    status = read_status(run)
    assert (status.state, status.error["message"]) == ("failed", outcome.message)
