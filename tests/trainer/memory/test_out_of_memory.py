"""When the device's memory is exhausted: samples are left out, and what was learnt is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from modules.modelSetup import training
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.objective import execution
from modules.trainer.callbacks import Callback
from modules.trainer.evaluate.validation import PairValidation
from modules.trainer.GenericTrainer import GenericTrainer
from modules.trainer.resume.checkpoint import list_backups
from tests.trainer.builders import run_here, same_weights, write_config, write_pairs
from tests.usual import usual

SMALL = {"prompt": "a cat", "width": 64, "height": 64, "diffusion_steps": 1, "cfg_scale": 1.0}
LARGE = {**SMALL, "width": 128, "height": 64}


class Listener(Callback):
    """Notes what is told; ``after`` is called at the end of every step."""

    def __init__(self, after: Any = None) -> None:
        self.after = after
        self.warnings: list[str] = []
        self.samples: list[int] = []
        self.validations: list[int] = []
        self.sampled: list[int] = []
        self.saves: list[int] = []
        self.errors: list[tuple[str, str]] = []

    def step(self, progress: Any, metrics: Any, total: int, eta: float | None) -> None:
        if self.after is not None:
            self.after(progress.global_step)

    def sample(self, progress: Any, path: Path, prompt: str, number: int) -> None:
        assert path.exists()
        self.samples.append(number)
        self.sampled.append(progress.global_step)

    def saved(self, progress: Any, path: Path) -> None:
        self.saves.append(progress.global_step)

    def validation(self, progress: Any, metrics: Any) -> None:
        self.validations.append(progress.global_step)

    def warning(self, message: str) -> None:
        self.warnings.append(message)

    def error(self, message: str, category: str, hint: str = "", traceback: str = "") -> None:
        self.errors.append((category, hint))


class Exhausted:
    """From the moment it is armed a method finds no memory, where ``when`` says so of its arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, when: Any = None) -> None:
        self.armed = False
        act = getattr(owner, name)

        def tried(*args: Any, **options: Any) -> Any:
            if self.armed and (when is None or when(*args, **options)):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            return act(*args, **options)

        monkeypatch.setattr(owner, name, tried)

    def arm_at(self, step: int) -> Any:
        return lambda done: setattr(self, "armed", done == step)


def test_samples_that_do_not_fit_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Exhausted(
        monkeypatch, BaseModelSetup, "decode_latents", lambda _s, _m, x: x.shape[-1] > x.shape[-2]
    )
    full.armed = True
    listener = Listener()
    path = write_config(
        tmp_path, samples=[SMALL, LARGE, SMALL], sample_before_training=True, max_steps=2,
        sample_after=1, sample_after_unit="STEP",
    )  # fmt: skip
    assert run_here(path, callback=listener).progress.global_step == 2
    assert listener.samples == [0, 2] * 3
    told = [text for text in listener.warnings if "memory" in text]
    assert len(told) == 3 and all("1 of 3 samples" in text and "128x64" in text for text in told)


@pytest.mark.parametrize("place", usual(["step", "validation"], "step"))
def test_what_was_learnt_is_kept(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = {"concepts": write_pairs(tmp_path / "data"), "max_steps": 4, "clip_grad_norm": 1.0}
    if place == "validation":
        shared |= {"rlhf_dpo_validation": True, "rlhf_dpo_validation_percentage": 34.0,
                   "validate_after": 3, "validate_after_unit": "STEP"}  # fmt: skip
    run_here(write_config(tmp_path / "whole", **shared))
    owner, name = (execution, "run") if place == "step" else (PairValidation, "run")
    full = Exhausted(monkeypatch, owner, name)
    listener = Listener(full.arm_at(3))
    path = write_config(tmp_path / "cut", **shared)
    with pytest.raises(torch.OutOfMemoryError):
        run_here(path, callback=listener)
    assert [category for category, _ in listener.errors] == ["gpu_memory"] and listener.errors[0][1]
    (backup,) = list_backups(tmp_path / "cut" / "run" / "backup")
    assert "backup-3-" in backup.name

    full.armed = False
    again = write_config(tmp_path / "cut", **shared, continue_last_backup=True)
    listener = Listener()
    assert run_here(again, callback=listener).progress.global_step == 4
    assert listener.validations == ([3, 4] if place == "validation" else [])
    assert same_weights(tmp_path / "whole" / "out.safetensors", tmp_path / "cut" / "out.safetensors")


@pytest.mark.slow
def test_a_validation_that_does_not_fit_can_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Exhausted(monkeypatch, PairValidation, "run")
    held_back = {"rlhf_dpo_validation": True, "rlhf_dpo_validation_percentage": 34.0}
    path = write_config(
        tmp_path, **held_back, max_steps=4, validate_after=3, validate_after_unit="STEP",
    )  # fmt: skip
    with pytest.raises(torch.OutOfMemoryError):
        run_here(path, callback=Listener(full.arm_at(3)))
    full.armed, listener = False, Listener()
    run_here(path, "continue_last_backup=true", "validate_after_unit=NEVER", callback=listener)
    # the final weights are always validated
    assert listener.validations == [4]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["validation", "save"])
def test_what_was_due_with_it_is_done_after_a_resume(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = (PairValidation, "run") if place == "validation" else (training, "save")
    full = Exhausted(monkeypatch, owner, name)
    due: dict[str, Any] = {}
    for what in ("validate_after", "sample_after", "save_every"):
        due |= {what: 1, f"{what}_unit": "STEP"}
    path = write_config(
        tmp_path, **due, rlhf_dpo_validation=True, rlhf_dpo_validation_percentage=34.0, samples=[SMALL],
        sample_skip_first=2, save_skip_first=2, max_steps=4,
    )  # fmt: skip
    before = Listener(full.arm_at(3))
    with pytest.raises(torch.OutOfMemoryError):
        run_here(path, callback=before)
    full.armed, rest = False, Listener()
    run_here(path, "continue_last_backup=true", callback=rest)
    # each once, and the last save is that of the end
    assert before.validations + rest.validations == [1, 2, 3, 4]
    assert before.sampled + rest.sampled == [3, 4]
    assert (before.saves, rest.saves) == ([], [3, 4, 4])
    assert rest.sampled == ([3, 4] if place == "validation" else [4])


def test_nothing_learnt_since_the_last_backup_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Exhausted(monkeypatch, execution, "run")
    full.armed = True
    path = write_config(tmp_path)
    with pytest.raises(torch.OutOfMemoryError):
        run_here(path)
    assert list_backups(tmp_path / "run" / "backup") == []

    full.armed = False
    path = write_config(tmp_path, backup_after=2, backup_after_unit="STEP", max_steps=5)
    with pytest.raises(torch.OutOfMemoryError):
        run_here(path, callback=Listener(full.arm_at(2)))
    assert len(list_backups(tmp_path / "run" / "backup")) == 1


@pytest.mark.parametrize("fused", [False, True])
def test_weights_of_half_a_step_are_not_kept(
    fused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    concept = {**write_pairs(tmp_path / "data")[0], "type": "STANDARD"}
    path = write_config(
        tmp_path, concepts=[concept], rlhf_enabled=False, clip_grad_norm=0.0,
        optimizer={"fused_back_pass": fused},
    )  # fmt: skip
    trained: list[Any] = []

    def arm(step: int) -> None:
        if step == 2:
            optimizer = trained[0].parts.optimizer
            take, calls = optimizer.step, []

            def half(*args: Any, **options: Any) -> Any:
                calls.append(1)
                if not fused or len(calls) > 3:
                    raise torch.OutOfMemoryError("CUDA out of memory")
                return take(*args, **options)

            optimizer.step = half

    start = GenericTrainer.start
    monkeypatch.setattr(GenericTrainer, "start", lambda self: (trained.append(self), start(self))[1])
    with pytest.raises(torch.OutOfMemoryError):
        run_here(path, callback=Listener(arm))
    assert list_backups(tmp_path / "run" / "backup") == []
