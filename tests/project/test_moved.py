"""A project that was made on one computer continues on another: other home, other folder, other place of the model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.demo.pairs import prompt_split
from tests.project.simulated import headless, preferring
from tests.project.test_whole_loop import liking

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("--set", "cpu_threads=1", "--set", "epochs=6", "--set", "rlhf_dpo_validation=false")


class Computer:
    """A home folder and a copy of the base model at a place of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.model = folder, folder / "home", folder / "models" / f"of {folder.name}"
        self.home.mkdir(parents=True)
        shutil.copytree(ROOT / "resources" / "demo_model", self.model)
        self.project = folder / "projects" / "taste"

    def start(self, verb: str, *arguments: object) -> subprocess.Popen[str]:
        environment = {**os.environ, "HOME": str(self.home), "XDG_CONFIG_HOME": "", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, str(ROOT / "scripts" / "taste.py"), verb, str(self.project), "--json"]
        return subprocess.Popen(
            [*command, *map(str, arguments)], cwd=self.home, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, verb: str, *arguments: object, status: int = 0) -> str:
        process = self.start(verb, *arguments)
        said, errors = process.communicate()
        assert process.returncode == status, errors
        return errors if status else said


@pytest.mark.slow  # starts the sampler and the trainer as programs several times
def test_a_moved_project_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Computer(tmp_path / "first"), Computer(tmp_path / "second")
    prompts = first.home / "prompts.txt"
    prompts.write_text("\n".join(wish.caption() for wish in prompt_split(1)[0][:12]), encoding="utf-8")
    first.run(
        "new", "--base-model", first.model, "--prompts", prompts, "--device", "cpu", "--width", 64, "--height", 64,
        "--steps", 8, "--cfg", 2.5, "--sampler", "DDIM", "--near-duplicates", -1,
        "--preset", "#demo dpo.json",
    )  # fmt: skip
    first.run("generate", "--per-prompt", 3)
    headless(monkeypatch, preferring(liking, 0.02), "pick", str(first.project))
    training = first.start("train", *QUICK)
    events = first.project / "round-1" / "run" / "events.jsonl"
    wait_for(lambda: events.is_file() and '"step"' in events.read_text(), training)
    training.send_signal(signal.SIGINT)
    training.communicate()
    assert training.returncode in (2, 130)
    before = json.loads(first.run("status"))
    second.project.parent.mkdir()
    shutil.move(first.project, second.project)
    shutil.rmtree(first.folder)

    assert json.loads(second.run("status")) == before
    second.run("generate", "--per-prompt", 3)
    assert "--base-model" in second.run("generate", "--per-prompt", 4, status=2)
    second.run("new", "--base-model", second.model)
    assert json.loads(second.run("generate", "--per-prompt", 4))["made"] > 0
    trained = json.loads(second.run("train"))
    assert trained["adapter"] == "round-1/adapter.safetensors"
    lines = (second.project / "round-1" / "run" / "events.jsonl").read_text().splitlines()
    started = [event for line in lines if (event := json.loads(line))["kind"] == "run_started"]
    assert started[-1]["resumed_from"] and started[-1]["progress"]["global_step"] > 0
    result = json.loads(second.run("compare", "--images", 4, "--prepare"))
    assert result["contestants"] == ["round-1", "base"]
    assert json.loads(second.run("next"))["round"] == 2
    decided = [
        second.project / name for name in ("project.json", "round-1/plan.json", "round-1/trained.json")
    ]
    assert not [path.name for path in decided if str(first.folder) in path.read_text()]


def wait_for(wanted, process: subprocess.Popen[str], seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not wanted():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.05)
