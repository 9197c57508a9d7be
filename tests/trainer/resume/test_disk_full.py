"""A run on a disk that fills up: what can wait is a warning, what cannot ends it with a clear error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from modules.adapter import formats
from modules.trainer.callbacks import Callback
from modules.trainer.evaluate import best
from modules.trainer.resume import checkpoint
from modules.trainer.resume.checkpoint import find_backup, list_backups, read_backup
from modules.util.errors import UserError
from tests.trainer.builders import run_here, write_config

FULL = OSError(28, "No space left on device")


class Listener(Callback):
    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.errors: list[tuple[str, str]] = []
        self.ends: list[str] = []

    def warning(self, message: str) -> None:
        self.warnings.append(message)

    def error(self, message: str, category: str, hint: str = "", traceback: str = "") -> None:
        self.errors.append((message, category))

    def finished(self, status: str, progress: Any) -> None:
        self.ends.append(status)


def full_at(monkeypatch: pytest.MonkeyPatch, module: Any, *calls: int) -> None:
    """Make the module's writing of tensors fail at some of its calls, counted from 1."""
    original: Callable[..., None] = module.write_safetensors
    count = 0

    def write(*arguments: Any, **options: Any) -> None:
        nonlocal count
        count += 1
        if count in calls:
            raise FULL
        original(*arguments, **options)

    monkeypatch.setattr(module, "write_safetensors", write)


def test_a_backup_by_the_clock_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_at(monkeypatch, checkpoint, 2)
    listener = Listener()
    config = write_config(tmp_path, backup_after=1, backup_after_unit="STEP", rolling_backup=False, epochs=1)
    run_here(config, callback=listener)
    assert [w for w in listener.warnings if "No space left" in w] == listener.warnings
    assert len(listener.warnings) == 1
    assert (listener.errors, listener.ends) == ([], ["finished"])
    folder = tmp_path / "run" / "backup"
    assert [read_backup(path).progress.global_step for path in list_backups(folder)] == [3, 1]
    assert find_backup(folder)[1] == []
    assert (tmp_path / "out.safetensors").is_file()


def test_a_backup_that_must_be_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_at(monkeypatch, checkpoint, 1)
    listener = Listener()
    with pytest.raises(UserError, match="No space left on device"):
        run_here(write_config(tmp_path, epochs=1, backup_before_save=True), callback=listener)
    assert [category for _, category in listener.errors] == ["user"]
    assert listener.ends == ["failed"]
    assert list((tmp_path / "run" / "backup").iterdir()) == []


def test_a_model_that_cannot_be_saved_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_at(monkeypatch, formats, 1)
    listener = Listener()
    with pytest.raises(UserError, match="the model cannot be saved .*No space left on device") as caught:
        run_here(write_config(tmp_path, epochs=1), callback=listener)
    assert caught.value.field == "output_model_destination"
    assert [category for _, category in listener.errors] == ["user"]
    assert not list(tmp_path.glob("*out.safetensors*"))


@pytest.mark.parametrize("cause", ["disk", "number"])
def test_a_model_that_cannot_be_saved_at_the_end_costs_no_step(
    cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {"optimizer": {"optimizer": "SGD"}, "max_steps": 1, "output_dtype": "FLOAT_16"}
    if cause == "disk":
        full_at(monkeypatch, formats, 1)
    else:
        changes |= {"learning_rate": 100.0, "rlhf_dpo_beta": 1e9, "clip_grad_norm": 0.0}
    config = write_config(tmp_path, **changes)
    with pytest.raises(UserError, match="No space left" if cause == "disk" else "cannot be saved in float16"):
        run_here(config)
    (backup,) = list_backups(tmp_path / "run" / "backup")
    assert "-backup-1-" in backup.name and not (tmp_path / "out.safetensors").exists()
    run_here(config, "continue_last_backup=true", "output_dtype=BFLOAT_16")
    largest = max(float(tensor.abs().max()) for tensor in load_file(tmp_path / "out.safetensors").values())
    assert (largest > 65504) == (cause == "number")


def test_best_weights_that_cannot_be_kept_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_at(monkeypatch, best, 1)
    listener = Listener()
    changes = {"rlhf_dpo_validation": True, "rlhf_dpo_validation_percentage": 40.0, "epochs": 1}
    with pytest.raises(UserError, match="the best weights cannot be written"):
        run_here(write_config(tmp_path, **changes), callback=listener)
    assert [category for _, category in listener.errors] == ["user"]
    assert list((tmp_path / "run" / "best").iterdir()) == []


def test_a_sample_or_a_save_by_the_clock_that_finds_no_room_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from modules.trainer.evaluate import Sampler as sampling

    def refuse(*_: Any) -> None:
        raise FULL

    monkeypatch.setattr(sampling, "save_image", refuse)
    full_at(monkeypatch, formats, 1)
    listener = Listener()
    config = write_config(
        tmp_path,
        epochs=1,
        samples=[{"prompt": "a", "width": 64, "height": 64, "diffusion_steps": 1}],
        sample_after=3,
        sample_after_unit="STEP",
        save_every=3,
        save_every_unit="STEP",
    )
    run_here(config, callback=listener)
    assert (listener.errors, listener.ends) == ([], ["finished"])
    assert len(listener.warnings) == 2 and all("No space left" in w for w in listener.warnings)
    assert (tmp_path / "out.safetensors").is_file()
