"""Import of intervals and of what is skipped at the start.

OneTrainer's ``global_step`` counts batches; here a step is an optimizer step. What falls due while a gradient is
pending is postponed there until the optimizer step (``GenericTrainer.train``, ``TimedActionMixin``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from modules.util.config.foreign.Notes import Notes
from modules.util.config.foreign.step_counts import MOST, accumulated, in_optimizer_steps

Data = dict[str, Any]
_INTERVALS = ("sample_after", "save_every", "backup_after", "validate_after")
_SKIPS = {"sample_skip_first": "sample_after", "save_skip_first": "save_every"}


def import_intervals(full: Mapping[str, Any], notes: Notes) -> Data:
    """Intervals in optimizer steps, how many samplings and saves are skipped, and whether samples begin the run.

    A skip is a time there, in the unit of its interval; here it is a number.
    """
    together = full["gradient_accumulation_steps"]
    made: Data = {
        name: in_optimizer_steps(name, full[name], together, notes)
        for name in _INTERVALS
        if full[f"{name}_unit"] == "STEP"
    }
    for name, interval in _SKIPS.items():
        skipped, every = full[name], full[interval]
        if not all(isinstance(value, (int, float)) and 0 < value < MOST for value in (skipped, every)):
            continue
        if interval in made:
            every = made[interval] * accumulated(together)  # batches between two of ours
        unit, saves = full[f"{interval}_unit"], name == "save_skip_first"
        # an interval that was rounded up must not let the first save through
        least = int(saves and unit == "STEP" and skipped >= full[interval])
        made[name] = max(_skipped(skipped, every, unit, saves), least)
        if made[name] != skipped:
            why = f"in OneTrainer a time in the unit of {interval}, here a number of its intervals"
            notes.moved(name, skipped, f"{made[name]}", why)
    return made | {"sample_before_training": _samples_at_start(full)}


def _samples_at_start(full: Mapping[str, Any]) -> bool:
    """Return whether samples are due there before the first step, which is a setting of its own here.

    They are at step 0 unless something is skipped: of steps and epochs at least one, of time anything
    (``single_action_elapsed``).
    """
    unit, every, skipped = full["sample_after_unit"], full["sample_after"], full["sample_skip_first"]
    if unit in ("NEVER", "ALWAYS"):
        return bool(unit == "ALWAYS")
    if not all(isinstance(value, (int, float)) and abs(value) < MOST for value in (every, skipped)):
        return False
    if unit in ("STEP", "EPOCH"):
        return bool(int(every) != 0 and skipped < 1)
    return bool(skipped <= 0)


def _skipped(first: float, every: float, unit: str, saves: bool) -> int:
    """Return how many of the times ``every``, twice ``every``, ... are left out.

    There, what is due at step k counts as done at k + 1, and is left out up to ``first``. Only saves by steps are due
    at the end of the step itself.

    Args:
        saves: it is about saves, not samples.
    """
    if unit == "ALWAYS":
        return 0
    return int(first // every) if saves and unit == "STEP" else max(0, math.ceil(first / every) - 1)
