"""What happens between optimizer steps: orders, and where the run is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modules.runner.RunDirectory import RunDirectory
from modules.trainer.callbacks import Callback
from modules.trainer.control import Commands as commands
from tests.trainer.builders import run_here, same_weights, write_config, write_pairs

SAMPLES = [{"prompt": "a cat", "width": 64, "height": 64, "diffusion_steps": 1, "cfg_scale": 1.0}]


class Ordering(Callback):
    """Orders things at the first step, others whenever a command is done."""

    def __init__(self, run: Path, *first: str, then: dict[str, str] | None = None) -> None:
        self.run, self.first, self.then = RunDirectory(run), first, then or {}
        self.steps: list[tuple[int, int]] = []
        self.answers: list[tuple[str, str]] = []
        self.samples: list[Path] = []
        self.warnings: list[str] = []

    def step(self, progress: Any, metrics: Any, total: int, eta: float | None) -> None:
        self.steps.append((progress.epoch, progress.epoch_step))
        if progress.global_step == 1:
            for kind in self.first:
                self.run.post(kind)

    def command(self, command: Any, state: str, message: str = "") -> None:
        if state != "taken":
            self.answers.append((command.kind, state))
            if command.kind in self.then:
                self.run.post(self.then[command.kind])

    def sample(self, progress: Any, path: Path, prompt: str, number: int) -> None:
        self.samples.append(path)

    def warning(self, message: str) -> None:
        self.warnings.append(message)


def test_what_is_asked_together_with_a_pause_is_done_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "PAUSE_SECONDS", 0.0)
    listener = Ordering(tmp_path / "run", "pause", "sample", then={"sample": "resume"})
    run_here(write_config(tmp_path, epochs=1, samples=SAMPLES), callback=listener)
    assert sorted(listener.answers) == [("pause", "done"), ("resume", "done"), ("sample", "done")]
    assert len(listener.samples) == 1


def test_an_epoch_without_a_step_is_passed_over_and_resumed_in_the_right_place(tmp_path: Path) -> None:
    concepts = [{**c, "balancing": 0.4} for c in write_pairs(tmp_path / "data", 2)]
    changes = {"concepts": concepts, "epochs": 10, "batch_size": 1}
    whole = Ordering(tmp_path / "whole" / "run")
    trainer = run_here(write_config(tmp_path / "whole", **changes), callback=whole)
    epochs = [trainer.parts.loader.sampler.steps_in_epoch(e) for e in range(10)]
    assert 0 in epochs
    assert max(epochs) >= 1
    assert [epoch for epoch, _ in whole.steps] == [e for e, count in enumerate(epochs) for _ in range(count)]

    halted = write_config(tmp_path / "halted", **changes)
    run_here(halted, callback=Ordering(tmp_path / "halted" / "run", "stop"))
    rest = Ordering(tmp_path / "halted" / "run")
    run_here(halted, "continue_last_backup=true", callback=rest)
    assert rest.steps == whole.steps[1:]
    assert same_weights(tmp_path / "whole" / "out.safetensors", tmp_path / "halted" / "out.safetensors")


class Saves(Ordering):
    """Also keeps the optimizer steps after which something was saved."""

    def __init__(self, run: Path, *first: str) -> None:
        super().__init__(run, *first)
        self.saved_at: list[int] = []

    def saved(self, progress: Any, path: Path) -> None:
        self.saved_at.append(progress.global_step)


def test_an_interval_that_ends_with_an_epoch_without_a_step_is_kept(tmp_path: Path) -> None:
    """Nothing is done twice with the same weights."""
    concepts = [{**c, "balancing": 0.4} for c in write_pairs(tmp_path / "data", 2)]
    changes = {
        "concepts": concepts, "epochs": 10, "batch_size": 1, "save_every": 2, "save_every_unit": "EPOCH"
    }  # fmt: skip
    whole = Saves(tmp_path / "whole" / "run")
    trainer = run_here(write_config(tmp_path / "whole", **changes), callback=whole)
    epochs = [trainer.parts.loader.sampler.steps_in_epoch(e) for e in range(10)]
    ends = [sum(epochs[:end]) for end in range(2, 11, 2)]
    assert any(not epochs[end - 1] and sum(epochs[end - 2 : end]) for end in range(2, 11, 2))
    assert whole.saved_at == [*dict.fromkeys(end for end in ends if end), sum(epochs)]

    halted = write_config(tmp_path / "halted", **changes)
    first, rest = Saves(tmp_path / "halted" / "run", "stop"), Saves(tmp_path / "halted" / "run")
    run_here(halted, callback=first)
    run_here(halted, "continue_last_backup=true", callback=rest)
    assert first.saved_at + rest.saved_at == whole.saved_at
