"""runctl as a process of its own, against a trainer that is another."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from modules.runner.RunDirectory import RunDirectory
from modules.runner.status import read_status
from tests.runner.support import ROOT, start_fake, wait_until

RUNCTL = ROOT / "scripts" / "runctl.py"


def runctl(run: RunDirectory, *arguments: str, cwd=None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUNCTL), str(run.path), *arguments],
        cwd=cwd, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "a run")


@pytest.fixture
def trainer(run, request):
    process = start_fake(run.create(), getattr(request, "param", "obey"))
    wait_until(lambda: run.trainer() and read_status(run).step)
    yield process
    process.kill()
    process.wait()


def test_orders_are_given_and_their_end_awaited(run, trainer, tmp_path):
    for action in ("backup", "sample", "save", "pause", "resume"):
        done = runctl(run, action, "--wait", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{action}: done\n", "")
        assert (read_status(run).state == "paused") == (action == "pause")
    ordered = runctl(run, "backup", "--json")
    assert json.loads(ordered.stdout)["state"] == "ordered"
    stopped = runctl(run, "stop", "--wait", "--json")
    answer = json.loads(stopped.stdout)
    assert (stopped.returncode, answer["command"], answer["state"]) == (0, "stop", "done")
    assert run.trainer() is None
    assert read_status(run).state == "stopped"


@pytest.mark.parametrize("trainer", ["fail:backup"], indirect=True)
def test_an_order_that_fails_is_not_called_done(run, trainer):
    failed = runctl(run, "backup", "--wait")
    assert (failed.returncode, failed.stdout) == (2, "backup: failed (the disk is full)\n")


def test_a_trainer_that_is_busy_or_dies_does_not_answer(run):
    with run.locked(), run.writer() as writer:  # this process trains, and takes no orders
        writer.emit("run_started")
        late = runctl(run, "backup", "--wait", "--timeout", "0.3")
        assert late.returncode == 2
        assert "no answer within 0.3 s" in late.stderr
        assert [command.kind for command in run.take_commands()[0]] == ["backup"]
        waiting = subprocess.Popen(
            [sys.executable, str(RUNCTL), str(run.path), "sample", "--wait"],
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: len(run.take_commands()[0]) == 1)
    assert "ended before it answered" in waiting.communicate(timeout=30)[1]
    assert waiting.returncode == 2


def test_what_is_wrong_is_said_and_the_status_is_2(run, tmp_path):
    nothing = runctl(run, "stop")
    assert nothing.returncode == 2
    assert "is not the folder of a run" in nothing.stderr
    assert not run.path.exists()
    with run.create().writer() as writer:
        writer.emit("run_started")
    for action in ("stop", "follow"):
        idle = runctl(run, action, "--json")
        assert idle.returncode == 2
        assert "no training is running" in idle.stderr
        assert json.loads(idle.stdout)["state"] == "error"
    assert runctl(run, "explode").returncode == 2
    refused = runctl(RunDirectory(tmp_path / ("x" * 300)), "status", "--json")
    assert refused.returncode == 2
    assert json.loads(refused.stdout)["message"].endswith("File name too long")


def test_status_for_people_and_programs(run, trainer, monkeypatch):
    wait_until(lambda: read_status(run).step["progress"]["global_step"] == 3)
    with monkeypatch.context() as imports_told:
        imports_told.setenv("PYTHONPROFILEIMPORTTIME", "1")
        people = runctl(run, "status")
    assert people.returncode == 0
    assert "modules.runner.status" in people.stderr and "pydantic" not in people.stderr, "it starts slowly"
    first, *rest = people.stdout.splitlines()
    assert first == f"{run.path}: running (process {trainer.pid})"
    assert "  step 3/99 eta=1 loss/train_step=0.5" in rest
    status = json.loads(runctl(run, "status", "--json").stdout)
    assert (status["state"], status["step"]["metrics"]) == ("running", {"loss/train_step": 0.5})
    trainer.kill()
    trainer.wait()
    assert json.loads(runctl(run, "status", "--json").stdout)["state"] == "died"


def test_following_ends_with_the_run(run, trainer):
    with subprocess.Popen(
        [sys.executable, str(RUNCTL), str(run.path), "follow", "--all", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        assert json.loads(following.stdout.readline())["kind"] == "run_started"
        run.post("stop")
        kinds = [json.loads(line)["kind"] for line in following.stdout]
        assert following.wait(30) == 0
    assert kinds[:3] == ["step"] * 3
    assert kinds[-3:] == ["command", "command", "run_finished"]
    again = runctl(run, "follow", "--all")
    assert again.returncode == 0
    assert again.stdout.splitlines()[-1] == "run_finished status=stopped"


def test_following_a_run_that_dies_is_no_success(run, trainer):
    with subprocess.Popen(
        [sys.executable, str(RUNCTL), str(run.path), "follow"], stdout=subprocess.PIPE, text=True
    ) as following:
        assert following.stdout.readline().startswith(f"{run.path}: running")
        run.post("backup")
        wait_until(lambda: following.stdout.readline().startswith("command id="))
        trainer.kill()
        trainer.wait()
        assert following.wait(30) == 2


def test_tensorboard_shows_this_run_on_the_port_of_its_config(run, tmp_path, monkeypatch):
    package = tmp_path / "fake" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "main.py").write_text("import json, sys; print(json.dumps(sys.argv[1:]))")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    run.create().config_path.write_text('{"tensorboard_port": 6123}')
    shown = runctl(run, "tensorboard")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout) == ["--logdir", str(run.tensorboard_dir), "--port", "6123"]
    (package / "main.py").write_text("raise SystemExit('the port is in use')")
    assert runctl(run, "tensorboard").returncode == 2
