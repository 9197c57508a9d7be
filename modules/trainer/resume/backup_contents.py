"""Checks the content of a backup before any of it is used, because digests do not prove whose files they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from modules.util.enum.DPOExecutionMode import DPOExecutionMode
from modules.util.errors import UserError
from modules.util.TrainProgress import TrainProgress

LARGEST = 2**53
"""Upper limit for all counts of a run; anything larger is invalid."""
LARGEST_NUMBER = 1e300
_MAX_PROCESSES = 65_536
_WEIGHT_FILE = re.compile(r"[^/\\]+\.safetensors")

FORMER = "validating_at"
"""A counter of earlier versions, which noted only a validation that was due and not done."""

Check = Callable[[Any], bool]


@dataclass
class Counters:
    """Counters of the training loop.

    Args:
        undefined_steps: consecutive steps whose loss or gradient was NaN or infinite.
        saves_due: number of intermediate saves due so far, made or skipped.
        validated_at: the step of the last validation.
        samples_due: number of samplings due so far, made or skipped.
        due_at: the step at which work was due that is not done yet; -1: none.
        due: that work, as bits from the lowest: validation, samples, saving. A resumed run does it.
    """

    undefined_steps: int = 0
    saves_due: int = 0
    validated_at: int = -1
    samples_due: int = 0
    due_at: int = -1
    due: int = 0

    def load(self, saved: Mapping[str, int]) -> None:
        """Restore the counters of a backup."""
        for name in {field.name for field in fields(self)} & saved.keys():
            setattr(self, name, int(saved[name]))
        if saved.get(FORMER, -1) >= 0:
            self.due_at, self.due = int(saved[FORMER]), 1


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST_NUMBER


def _each(check: Check) -> Check:
    return lambda value: isinstance(value, Mapping) and all(map(check, value.values()))


def _counters(value: Any) -> bool:
    known = {field.name for field in fields(Counters)} | {FORMER}
    return _each(lambda one: _count(one) or one == -1)(value) and set(value) <= known


def _identity(value: Any) -> bool:
    return _each(lambda one: isinstance(one, str))(value) and {"base", "data"} <= value.keys()


def _weight_files(value: Any) -> bool:
    return _each(lambda one: isinstance(one, str) and _WEIGHT_FILE.fullmatch(one) is not None)(value)


def _scaler(value: Any) -> bool:
    known = isinstance(value, Mapping) and {"scale", "good"} <= value.keys()
    return known and _number(value["scale"]) and value["scale"] >= 1 and _count(value["good"])


def _patience(value: Any) -> bool:
    known = isinstance(value, Mapping) and {"counter", "bests"} <= value.keys()
    return known and _count(value["counter"]) and _each(_number)(value["bests"])


def _best(value: Any) -> bool:
    if value == {}:
        return True
    known = isinstance(value, Mapping) and {"step", "accuracy", "loss"} <= value.keys()
    return known and _count(value["step"]) and _number(value["accuracy"]) and _number(value["loss"])


def _diagnostics(value: Any) -> bool:
    if not isinstance(value, Mapping) or not {"points", "steps", "told"} <= value.keys():
        return False
    points = value["points"]
    if not isinstance(points, list) or not all(isinstance(p, list) and len(p) == 5 for p in points):
        return False
    return (
        all(_number(one) for point in points for one in point)
        and _count(value["steps"])
        and _each(_count)(value["told"])
    )


def _step(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    beta = value.get("adaptive_beta", {"fast": 0.0, "slow": 0.0, "updates": 0.0})
    known = _each(_number)(beta) and {"fast", "slow", "updates"} <= beta.keys() and beta["updates"] >= 0
    return known and ("diagnostics" not in value or _diagnostics(value["diagnostics"]))


_NEEDED: dict[str, Check] = {
    "identity": _identity, "step": _step, "scaler": _scaler, "counters": _counters,
}  # fmt: skip
_OPTIONAL: dict[str, Check] = {
    "processes": lambda value: _count(value) and 1 <= value <= _MAX_PROCESSES,
    "execution_mode": lambda value: value in DPOExecutionMode.__members__.values(),
    "weight_files": _weight_files,
    "ema_begun": lambda value: type(value) is bool,
    "patience": _patience,
    "best": _best,
    "rollout": lambda value: value is None or isinstance(value, Mapping),
}


def problem_of_facts(facts: Any, label: str, has_best: bool) -> str | None:
    """The fault of the position and state in a backup, as a sentence; ``None`` if there is none.

    Args:
        facts: content of its ``meta.json``.
        label: the position in its name.
        has_best: whether it has a file of best weights.
    """
    if not isinstance(facts, Mapping) or not isinstance(facts.get("state"), Mapping):
        return "meta.json does not describe a run"
    position = facts.get("train_progress")
    try:
        progress = TrainProgress.from_dict(position if isinstance(position, Mapping) else {})
    except UserError:
        return "meta.json does not say where the run was"
    if max(progress.to_dict().values()) > LARGEST or progress.label() != label:
        return "meta.json says a different step from the name of the backup"
    state = facts["state"]
    for name, check in {**_NEEDED, **_OPTIONAL}.items():
        if name in state and not check(state[name]):
            return f"meta.json: {name} is not what this program writes"
        if name not in state and name in _NEEDED:
            return f"meta.json: {name} is missing"
    if state.get("best") and not has_best:
        return "the best weights are missing"
    return None


def problem_of_weights(path: Path) -> str | None:
    """Return the reason why a file of tensors is unreadable or invalid (NaN or infinite), as a sentence;
    ``None`` if it is fine.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as handle:
            for name in handle.keys():  # noqa: SIM118 - not a mapping
                tensor = handle.get_tensor(name)
                wide = tensor.float() if tensor.element_size() == 1 else tensor
                if tensor.is_floating_point() and not bool(torch.isfinite(wide).all()):
                    return f"{path.name}: {name} holds NaN or infinity"
    except (OSError, SafetensorError, ValueError) as error:
        return f"{path.name} cannot be read: {error}"
    return None
