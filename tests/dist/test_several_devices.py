"""A run on several listed devices, started as the window starts it: one process for each, steered and ended as one."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from modules.dataLoader.preflight import preflight
from modules.trainer.control.PeerWatch import EXIT_STATUS
from modules.trainer.distributed import train_on_each
from modules.trainer.resume.checkpoint import find_backup, read_backup
from modules.ui.state.RunControl import RunControl
from modules.util.config.TrainConfig import TrainConfig
from scripts import train
from tests.dist.group import run_two
from tests.dist.test_torchrun import COMMON
from tests.trainer.builders import (
    FEW_LAYERS,
    environment,
    events,
    same_weights,
    settings,
    write_config,
    write_pairs,
)

pytestmark = pytest.mark.dist

TWO = {**COMMON, "train_device": "cpu,cpu"}
LONG = {**TWO, "epochs": 60, "backup_after": 4, "backup_after_unit": "STEP"}
BOUND = 90.0


class Watched:
    """A run that the window has started.

    Args:
        folder: holds the run and its data.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, folder / "run"
        self.control = RunControl()
        self.seen: set[psutil.Process] = set()

    def start(self, **changes: Any) -> None:
        waits = self.control.start(self.run, settings(self.folder, **changes))
        assert not waits, waits

    def until(self, wanted: Callable[[], object], seconds: float = BOUND) -> None:
        end = time.monotonic() + seconds
        while not wanted():
            assert time.monotonic() < end, f"{self.control.state}: {self.log()}"
            self.control.poll()
            time.sleep(0.05)

    def until_training(self, kind: str = "step") -> None:
        self.until(lambda: self.control.outcome or kind in (event["kind"] for event in self.told()))
        assert self.control.outcome is None, self.log()
        self.seen = set(self.members().values())

    def told(self) -> list[dict[str, Any]]:
        return events(self.run) if (self.run / "events.jsonl").exists() else []

    def launcher(self) -> psutil.Process:
        return psutil.Process(json.loads((self.run / "launch.json").read_text("utf-8"))["process"]["pid"])

    def members(self) -> dict[int, psutil.Process]:
        below = self.launcher().children(recursive=True)
        return {int(one.environ()["RANK"]): one for one in below if "RANK" in one.environ()}

    def expect_nobody(self) -> None:
        """All processes of the run end."""
        _, left = psutil.wait_procs(self.seen, timeout=BOUND)
        assert not left, left

    def log(self) -> str:
        return (self.run / "log.txt").read_text(encoding="utf-8", errors="replace")[-4000:]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("modules.ui.state.RunControl.run_using", lambda device, besides: None)
    made = Watched(tmp_path / "window")
    made.folder.mkdir()
    yield made
    made.control.end_now()
    for process in made.seen:
        if process.is_running():
            process.kill()


@pytest.mark.slow
def test_the_window_starts_stops_and_resumes_what_the_command_line_trains(
    watched: Watched, tmp_path: Path
) -> None:
    changes = {**FEW_LAYERS, **TWO, "epochs": 40}
    run_two(write_config(tmp_path / "headless", **{**changes, "train_device": "cpu"}))
    watched.start(**changes)
    watched.until_training()
    assert sorted(watched.members()) == [0, 1]
    asked = {kind: watched.control.post(kind) for kind in ("save", "backup")}
    watched.until(
        lambda: all(
            any(e["kind"] == "command" and e["id"] == one and e["state"] == "done" for e in watched.told())
            for one in asked.values()
        )
    )
    watched.control.post("stop")
    watched.until(lambda: watched.control.outcome is not None)
    assert watched.control.state == "stopped"
    watched.expect_nobody()
    stopped_at = watched.told()[-1]["progress"]["global_step"]
    watched.start(**changes, continue_last_backup=True)
    watched.until(lambda: watched.control.outcome is not None)
    assert watched.control.state == "finished", watched.log()
    started = [event for event in watched.told() if event["kind"] == "run_started"]
    assert [event["processes"] for event in started] == [2, 2]
    assert started[1]["progress"]["global_step"] == stopped_at
    assert same_weights(tmp_path / "headless" / "out.safetensors", watched.folder / "out.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_run_with_one_message(watched: Watched, rank: int) -> None:
    watched.start(**LONG)
    watched.until_training("backup")
    os.kill(watched.members()[rank].pid, signal.SIGKILL)
    watched.until(lambda: watched.control.outcome is not None)
    watched.expect_nobody()
    fault = watched.control.fault()
    assert fault is not None and f"process {rank}" in fault[0] and "killed" in fault[0], fault
    assert "continue_last_backup" in fault[1]
    assert [e["category"] for e in watched.told() if e["kind"] == "error"] == ["killed"]


@pytest.mark.slow
def test_no_process_outlives_a_killed_launcher(watched: Watched) -> None:
    watched.start(**LONG)
    watched.until_training("backup")
    os.kill(watched.launcher().pid, signal.SIGKILL)
    watched.expect_nobody()


@pytest.mark.slow
def test_ending_a_run_by_force_ends_all_its_processes(watched: Watched) -> None:
    watched.start(**LONG)
    watched.until_training()
    watched.control.end_now()
    watched.expect_nobody()
    watched.until(lambda: watched.control.outcome is not None)


def answers(watched: Watched, *asked: str) -> list[str]:
    """What became of commands, in their order, once all have an answer."""

    def found() -> list[str]:
        states = {
            e["id"]: e["state"] for e in watched.told() if e["kind"] == "command" and e["state"] != "taken"
        }
        return [states[one] for one in asked if one in states]

    watched.until(lambda: len(found()) == len(asked) or watched.control.outcome)
    assert watched.control.outcome is None, watched.log()
    return found()


def steps(watched: Watched) -> int:
    return max(e["progress"]["global_step"] for e in watched.told() if e["kind"] == "step")


def sampled(watched: Watched) -> int:
    """The number of samples on the disk, each of which was told once."""
    told = sorted(watched.run / event["path"] for event in watched.told() if event["kind"] == "sample")
    assert told == sorted((watched.run / "samples").rglob("*.jpg"))
    return len(told)


SAMPLED = {
    **LONG, "epochs": 400, "backup_after_unit": "NEVER",
    "samples": [{"prompt": "a cat", "width": 64, "height": 64, "diffusion_steps": 2, "seed": 1}],
}  # fmt: skip


@pytest.mark.slow
def test_what_is_asked_of_a_run_under_way_happens_in_all_its_processes(watched: Watched) -> None:
    watched.start(**SAMPLED)
    watched.until_training()
    assert answers(watched, watched.control.post("sample")) == ["done"]
    assert sampled(watched) == 1

    assert answers(watched, watched.control.post("pause")) == ["done"]
    at = steps(watched)
    # commands during a pause are executed in it; the second sample of one step would have its name
    asked = [watched.control.post("backup"), watched.control.post("save")]
    assert answers(watched, *asked) == ["done", "done"]
    time.sleep(3.0)
    assert steps(watched) == at and sorted(watched.members()) == [0, 1]

    assert answers(watched, watched.control.post("resume")) == ["done"]
    watched.until(lambda: steps(watched) > at)
    assert answers(watched, watched.control.post("sample")) == ["done"]
    assert sampled(watched) == 2

    watched.control.post("stop")
    watched.until(lambda: watched.control.outcome is not None)
    assert watched.control.state == "stopped", watched.log()
    watched.expect_nobody()
    stopped_at = watched.told()[-1]["progress"]["global_step"]
    backup, _ = find_backup(watched.run / "backup")
    assert backup is not None and read_backup(backup).progress.global_step == stopped_at > at


@pytest.mark.slow
def test_a_paused_run_can_be_sampled_and_stopped(watched: Watched) -> None:
    watched.start(**SAMPLED)
    watched.until_training()
    assert answers(watched, watched.control.post("pause")) == ["done"]
    assert answers(watched, watched.control.post("sample")) == ["done"]
    assert sampled(watched) == 1
    at = steps(watched)
    watched.control.post("stop")
    watched.until(lambda: watched.control.outcome is not None)
    assert watched.control.state == "stopped", watched.log()
    watched.expect_nobody()
    backup, _ = find_backup(watched.run / "backup")
    assert backup is not None and read_backup(backup).progress.global_step == at


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no such device": ({"train_device": "cuda:0,cuda:99"}, "train_device", "cuda:"),
    "more devices than pairs": ({"train_device": ",".join(["cpu"] * 4)}, "train_device", "3 pairs"),
    "fused step": (
        {"optimizer": {"optimizer": "ADAMW", "fused_back_pass": True}, "clip_grad_norm": 0.0, "rlhf_enabled": False},
        "optimizer.fused_back_pass", "several processes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_start_check_names_what_several_devices_rule_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    changes, field, said = CASES[name]
    changes = {**TWO, **changes, "concepts": write_pairs(tmp_path / "data", 3)}
    if changes.get("rlhf_enabled") is False:
        changes["concepts"] = [{"path": str(tmp_path / "data" / "chosen"), "type": "STANDARD"}]
    config = write_config(tmp_path, **changes)
    train.main(["--config-path", str(config), "--dry-run", "--json"])
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert error["field"] == field and said in error["message"]


def test_a_start_with_a_device_that_does_not_exist_ends_at_once_with_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, **{**COMMON, "train_device": "cuda:0,cuda:99"})
    assert train.main(["--config-path", str(config)]) == 2
    said = capsys.readouterr().err
    assert said.count("error: ") == 1 and "train_device" in said
    assert not (tmp_path / "run").exists()


def test_processes_find_each_other_where_the_name_of_the_computer_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "meet.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "pathlib.Path(sys.argv[1], os.environ['RANK']).write_text(os.environ['MASTER_ADDR'])\n"
    )
    monkeypatch.setattr(socket, "getfqdn", lambda *names: "laptop.invalid")
    monkeypatch.setattr(socket, "gethostname", lambda: "laptop.invalid")
    assert train_on_each("cpu,cpu", script, [str(tmp_path)]) == 0
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["127.0.0.1"] * 2


def test_the_launcher_ignores_what_its_user_ignores_and_leaves_no_handler(tmp_path: Path) -> None:
    script = tmp_path / "wait.py"
    script.write_text(
        "import os, pathlib, signal, sys, time\n"
        "if os.environ['RANK'] == '0':\n"
        "    os.kill(os.getppid(), signal.SIGHUP)\n"
        "time.sleep(1)\n"
        "pathlib.Path(sys.argv[1], os.environ['RANK']).touch()\n"
    )
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = [signal.getsignal(number) for number in numbers]
    try:
        assert train_on_each("cpu,cpu", script, [str(tmp_path)]) == 0
        assert [signal.getsignal(number) for number in numbers] == before
    finally:
        signal.signal(signal.SIGHUP, hangup)
    assert (tmp_path / "0").exists() and (tmp_path / "1").exists()


@pytest.mark.parametrize(
    ("ends", "status", "said"),
    [
        ("sys.exit(3)", 3, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", EXIT_STATUS, "process 1, which trained on cpu, was killed (SIGKILL)"),
    ],
    ids=["error", "killed"],
)
def test_a_process_that_fails_ends_the_others_and_gives_the_run_its_status(
    ends: str, status: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "fail.py"
    script.write_text(
        "import os, pathlib, signal, sys, time\n"
        "other = pathlib.Path(sys.argv[1], 'other')\n"
        "if os.environ['RANK'] == '0':\n"
        "    other.write_text(str(os.getpid()))\n"
        "    time.sleep(120)\n"
        "while not other.exists() or not other.read_text():\n"
        "    time.sleep(0.02)\n"
        f"{ends}\n"
    )
    assert train_on_each("cpu,cpu", script, [str(tmp_path)]) == status
    assert said in capsys.readouterr().err
    assert not psutil.pid_exists(int((tmp_path / "other").read_text()))


def test_torchrun_with_more_processes_than_pairs_is_not_refused(tmp_path: Path) -> None:
    config = TrainConfig.from_dict(settings(tmp_path, **COMMON, concepts=write_pairs(tmp_path / "data", 3)))
    assert not preflight(config, world_size=4).faults
