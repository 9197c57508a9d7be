"""A steady step reads nothing from its device before the passes of the next one are queued."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from modules.trainer import GenericTrainer as trainer_module
from modules.trainer.callbacks import Callback
from modules.trainer.GenericTrainer import GenericTrainer
from modules.trainer.late import UnreadStep
from modules.util.errors import DataError
from modules.util.TrainProgress import TrainProgress
from tests.contracts.test_family_training import family_config
from tests.device.plugin import NAME as DEVICE
from tests.trainer.builders import run_here, same_weights, write_config, write_pairs
from tests.usual import usual

aten = torch.ops.aten
READS = (aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default)


class Waits(TorchDispatchMode):
    """Places in the program that make the CPU wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def _note(self, what: str) -> None:
        calls = [f"{call.filename}:{call.lineno}" for call in traceback.extract_stack()]
        ours = [call for call in calls if "/modules/" in call or "/diffusers/" in call]
        self.found.append(f"{what}: {' < '.join(reversed(ours[-3:]))}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in READS and any(map(_there, args)):
            self._note(str(func))
        if func is aten._to_copy.default and kwargs.get("device") is not None:
            self._copied(args[0].device, torch.device(kwargs["device"]), bool(kwargs.get("non_blocking")))
        if func is aten.copy_.default:
            self._copied(args[1].device, args[0].device, len(args) > 2 and bool(args[2]))
        if func in (aten.index.Tensor, aten.index_put_.default) and _there(args[0]):
            for index in args[1]:
                if index is not None and (index.dtype == torch.bool or not _there(index)):
                    self._note(f"{func} with {index.dtype} on {index.device}")
        return func(*args, **kwargs)

    def _copied(self, source: torch.device, target: torch.device, later: bool) -> None:
        if source.type == DEVICE != target.type:
            self._note("read")
        if source.type != DEVICE == target.type and not later:
            self._note("copied to the device, and waited for")


def _there(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[Waits, list[str]]:
    """What makes the CPU wait in the third step and later, and the order of what happens in all steps."""
    waits, order = Waits(), []
    take, read, update = GenericTrainer._take_step, UnreadStep.read, GenericTrainer._update
    backward = GenericTrainer._backward

    def taken(self: GenericTrainer, group: Any) -> Any:
        if self.progress.global_step < 2:
            return take(self, group)
        with waits:
            return take(self, group)

    def noted(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def noting(self: Any, *rest: Any) -> Any:
            order.append(name)
            return act(self, *rest)

        return noting

    def unwatched(self: UnreadStep) -> Any:
        order.append("read")
        known = len(waits.found)
        made = read(self)
        del waits.found[known:]
        return made

    monkeypatch.setattr(GenericTrainer, "_take_step", taken)
    monkeypatch.setattr(GenericTrainer, "_update", noted("update", update))
    monkeypatch.setattr(GenericTrainer, "_backward", noted("backward", backward))
    monkeypatch.setattr(UnreadStep, "read", unwatched)
    return waits, order


def supervised(folder: Path) -> dict[str, Any]:
    return {"rlhf_enabled": False, "concepts": [{**write_pairs(folder / "data")[0], "type": "STANDARD"}]}


KINDS: dict[str, dict[str, Any]] = {
    "supervised": {},
    "pairs": {},
    "reference cache": {"rlhf_dpo_reference_cache": True},
    "one after the other": {"rlhf_dpo_execution_mode": "SEQUENTIAL"},
    "average on the device": {"ema": "GPU", "ema_update_step_interval": 1},
    "bfloat16": {"train_dtype": "BFLOAT_16"},
    "checkpointing": {"unet": {"gradient_checkpointing": True}},
    "clipped each": {"clip_each_weight": True},
}


@pytest.mark.parametrize("kind", usual(KINDS, "supervised"))
def test_a_steady_step_does_not_wait_for_the_device(kind: str, tmp_path: Path, watched: Any) -> None:
    waits, order = watched
    changes = {**KINDS[kind], **(supervised(tmp_path) if kind == "supervised" else {})}
    assert run_here(write_config(tmp_path, **changes)).progress.global_step == 6
    assert not waits.found, waits.found
    one = ["backward", "read", "update"]
    # one pair after the other has several backward passes
    assert [name for name, _ in itertools.groupby(order)] == ["backward", "update", *one * 5, "read"]


FAMILIES = (
    "STABLE_DIFFUSION_XL_10_BASE", "STABLE_DIFFUSION_3", "FLUX_DEV_1", "FLUX_2", "SANA", "Z_IMAGE", "QWEN", "KREA_2",
)  # fmt: skip


@pytest.mark.parametrize("key", usual(FAMILIES, "Z_IMAGE"))
def test_no_family_waits(key: str, tmp_path: Path, watched: Any) -> None:
    waits, _ = watched
    assert run_here(family_config(tmp_path, key)).progress.global_step == 4
    assert not waits.found, waits.found


class Kept(Callback):
    """Everything a run says about its steps."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def step(self, progress: TrainProgress, metrics: Any, total: int, eta: float | None) -> None:
        self.said.append((progress.to_dict(), dict(metrics)))

    def warning(self, message: str) -> None:
        self.said.append(message)


@contextmanager
def spoiled(*steps: int) -> Iterator[None]:
    """In these optimizer steps, counted from 1, gradients are NaN."""
    backward, patch = GenericTrainer._backward, pytest.MonkeyPatch()

    def spoiling(self: GenericTrainer, loss: torch.Tensor) -> None:
        backward(self, loss * torch.nan if self.progress.global_step + 1 in steps else loss)

    with patch.context() as undone:
        undone.setattr(GenericTrainer, "_backward", spoiling)
        yield


CASES = list(
    itertools.product(("supervised", "pairs", "average on the device", "samples and backups"), ((), (1,), (2, 4)))
)


@pytest.mark.parametrize(("kind", "bad"), usual(CASES, ("average on the device", (2, 4))))
def test_numbers_read_late_change_nothing(
    kind: str, bad: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    for name in ("late", "at once"):
        folder = tmp_path / name
        changes = KINDS.get(kind, {"backup_after": 2, "backup_after_unit": "STEP", "save_every": 1})
        changes = {**changes, **(supervised(folder) if kind == "supervised" else {}), "nan_patience": 2}
        if name == "at once":
            monkeypatch.setattr(trainer_module, "can_wait", lambda *_: False)
        kept = Kept()
        with spoiled(*bad):
            run_here(write_config(folder, **changes), callback=kept)
        said.append(kept.said)
    # NaN differs from itself
    assert repr(said[0]) == repr(said[1]) and len(said[0]) == 6 + len(bad)
    assert same_weights(tmp_path / "late" / "out.safetensors", tmp_path / "at once" / "out.safetensors")


def test_a_run_ends_at_the_first_invalid_step_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("late", "at once"):
        if name == "at once":
            monkeypatch.setattr(trainer_module, "can_wait", lambda *_: False)
        path = write_config(tmp_path / name, epochs=3, nan_patience=2)
        with spoiled(2, 4, 5, 6), pytest.raises(DataError, match="step 5"):
            run_here(path)
        (backup,) = (tmp_path / name / "run" / "backup").glob("*-backup-*")
        assert "-backup-5-" in backup.name
        run_here(path, "continue_last_backup=true")
    assert same_weights(tmp_path / "late" / "out.safetensors", tmp_path / "at once" / "out.safetensors")
