"""Intervals at which something repeats."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from modules.util.enum.choices import TimeUnit
from modules.util.TrainProgress import TrainProgress

SECONDS = {TimeUnit.SECOND: 1.0, TimeUnit.MINUTE: 60.0, TimeUnit.HOUR: 3600.0}


def ends_a_tenth(step: int, total: int) -> bool:
    """Return whether one of ten equal parts of ``total`` steps ends with this step, except for the last part, which
    ends the run.
    """
    return 0 < step < total and step * 10 // total > (step - 1) * 10 // total


@dataclass
class Interval:
    """An event every ``after`` units.

    Intervals in steps and epochs depend only on the position, so that a resumed run does everything at the
    same positions as an uninterrupted one. Time intervals count from the start of the process.

    Args:
        after: number of units; at least 1 unless the unit is NEVER or ALWAYS.
        unit: unit of the interval; ALWAYS means after each step.
        clock: monotonic time in seconds.
    """

    after: int
    unit: TimeUnit
    clock: Callable[[], float] = time.monotonic
    _last: float = field(init=False)

    def __post_init__(self) -> None:
        self._last = self.clock()

    def due(self, progress: TrainProgress, epoch_ended: bool) -> bool:
        """Return whether it is due. Called once after each step, with the position after that step."""
        if self.unit is TimeUnit.NEVER:
            return False
        if self.unit is TimeUnit.ALWAYS:
            return True
        if self.unit is TimeUnit.STEP:
            return progress.global_step % self.after == 0
        if self.unit is TimeUnit.EPOCH:
            return epoch_ended and progress.epoch % self.after == 0
        return self.clock() - self._last >= self.after * SECONDS[self.unit]

    def due_in_empty_epochs(self, before: int, after: int) -> bool:
        """Return whether it ended in one of the epochs without a step, from ``before`` finished ones to ``after``.
        If it also ended with the last step before them, it is not due again, because the weights are the same.
        """
        if self.unit is not TimeUnit.EPOCH or before % self.after == 0:
            return False
        return after // self.after > before // self.after

    @property
    def in_time(self) -> bool:
        """True if it is measured in time."""
        return self.unit in SECONDS

    def restart(self) -> None:
        """Restart the time interval."""
        self._last = self.clock()
