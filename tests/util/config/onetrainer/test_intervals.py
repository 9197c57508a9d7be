"""Steps of a OneTrainer config: its step is a batch, ours is an optimizer step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.util.config.foreign.Notes import Note
from modules.util.config.TrainConfig import TrainConfig
from tests.util.config.onetrainer.reading import import_onetrainer

NAMES = ("sample_after", "save_every", "backup_after", "validate_after")


def load(folder: Path, **data: Any) -> tuple[TrainConfig, list[Note]]:
    path = folder / "onetrainer.json"
    path.write_text(json.dumps({"__version": 11, "concepts": [], "samples": [], **data}), encoding="utf-8")
    return import_onetrainer(path)


def every(number: float, unit: str = "STEP") -> dict[str, Any]:
    return dict.fromkeys(NAMES, number) | {f"{name}_unit": unit for name in NAMES}


def test_intervals_in_batches_become_optimizer_steps(tmp_path: Path) -> None:
    """``GenericTrainer.train`` of OneTrainer calls ``train_progress.next_step`` after every batch, and samples, saves
    and makes backups only ``if not has_gradient``, that is after an optimizer step.
    """
    config, notes = load(tmp_path, gradient_accumulation_steps=4, **every(100))
    assert [getattr(config, name) for name in NAMES] == [25] * 4
    assert not [note for note in notes if "optimizer steps" in note]


@pytest.mark.parametrize(("number", "exact", "steps"), [(10, "2.5", 3), (9, "2.25", 2), (3, "0.75", 1), (1, "0.25", 1)])
def test_what_does_not_divide_is_rounded_and_noted(number: int, exact: str, steps: int, tmp_path: Path) -> None:
    config, notes = load(tmp_path, gradient_accumulation_steps=4, **every(number))
    assert [getattr(config, name) for name in NAMES] == [steps] * 4
    for name in NAMES:
        (note,) = [note for note in notes if note.startswith(f"{name} =")]
        why = f"the file counts batches, which make {exact} optimizer steps; here it is {steps}"
        assert note == f"{name} = {number}: {why}"
        assert not note.changes_weights and note.ours == str(steps)


@pytest.mark.parametrize(
    "given",
    [
        {"gradient_accumulation_steps": 1, **every(7)},
        *({"gradient_accumulation_steps": 4, **every(7, unit)} for unit in ("EPOCH", "MINUTE", "HOUR", "SECOND")),
    ],
)
def test_other_intervals_stay_as_they_are(given: dict[str, Any], tmp_path: Path) -> None:
    config, notes = load(tmp_path, **given)
    assert [getattr(config, name) for name in NAMES] == [7] * 4
    assert not [note for note in notes if "optimizer steps" in note]


@pytest.mark.parametrize(
    ("number", "first", "skipped"),
    [(100, 250, (2, 2)), (100, 300, (2, 3)), (10, 25, (2, 2)), (1, 12, (2, 3)), (6, 60, (7, 7)), (10, 10, (0, 1))],
)
def test_skips_are_counted_from_the_batches_once(
    number: int, first: int, skipped: tuple[int, int], tmp_path: Path
) -> None:
    """Of the samplings after 4, 8, 12, ... batches (``number`` 1), those up to batch 12 are left out there."""
    config, notes = load(
        tmp_path, gradient_accumulation_steps=4, **every(number), sample_skip_first=first, save_skip_first=first
    )
    assert (config.sample_skip_first, config.save_skip_first) == skipped
    assert not [note for note in notes if "skip_first" in note]


@pytest.mark.parametrize(
    ("indexes", "device"), [("0,1", "cuda:0,cuda:1"), (" 2, 0 ", "cuda:2,cuda:0"), ("1", "cuda:1")]
)
def test_several_gpus_become_a_list_of_devices(indexes: str, device: str, tmp_path: Path) -> None:
    """``MultiTrainer`` of OneTrainer trains on ``torch.device(train_device, index)`` for each of the indexes."""
    config, notes = load(tmp_path, multi_gpu=True, device_indexes=indexes, train_device="cuda")
    assert config.train_device == device
    assert not [note for note in notes if "device" in note or "multi_gpu" in note]


def test_all_gpus_cannot_be_listed_here(tmp_path: Path) -> None:
    config, notes = load(tmp_path, multi_gpu=True)
    assert config.train_device == "auto"
    (note,) = [note for note in notes if note.startswith("multi_gpu")]
    assert "list them in train_device, such as cuda:0,cuda:1" in note and note.changes_weights


def test_indexes_without_several_gpus_have_no_meaning(tmp_path: Path) -> None:
    config, notes = load(tmp_path, multi_gpu=False, device_indexes="0,1")
    assert config.train_device == "auto"
    assert not [note for note in notes if "device" in note]


@pytest.mark.parametrize("indexes", ["0,0", "a", "0,,1", "0,-1", 5, None])
def test_indexes_that_name_no_devices_are_noted(indexes: Any, tmp_path: Path) -> None:
    config, notes = load(tmp_path, multi_gpu=True, device_indexes=indexes)
    assert config.train_device == "auto"
    (note,) = [note for note in notes if note.startswith("device_indexes")]
    assert "set train_device" in note and note.faulty


def test_other_devices_do_not_train_together(tmp_path: Path) -> None:
    config, notes = load(tmp_path, multi_gpu=True, device_indexes="0,1", train_device="mps")
    assert config.train_device == "mps"
    assert any(note.startswith("multi_gpu") and "mps" in note for note in notes)


@pytest.mark.parametrize(
    ("given", "at_start"),
    [
        ({}, True),
        ({"sample_after": 10, "sample_after_unit": "STEP"}, True),
        ({"sample_after": 10, "sample_after_unit": "STEP", "sample_skip_first": 1}, False),
        ({"sample_after": 0, "sample_after_unit": "EPOCH"}, False),
        ({"sample_after": 1, "sample_after_unit": "EPOCH"}, True),
        ({"sample_after": 5, "sample_after_unit": "MINUTE", "sample_skip_first": 1}, False),
        ({"sample_after_unit": "NEVER"}, False),
        ({"sample_after_unit": "ALWAYS", "sample_skip_first": 5}, True),
    ],
)
def test_samples_at_the_start_stay(tmp_path: Path, given: dict[str, Any], at_start: bool) -> None:
    """There, they are due at step 0 (``repeating_action_needed`` of ``TimedActionMixin``, which starts at zero)."""
    config, _ = load(tmp_path, **given)
    assert config.sample_before_training is at_start
