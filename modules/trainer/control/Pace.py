"""Estimates the remaining time of a run."""

from __future__ import annotations

import time
from collections.abc import Callable

MEMORY_STEPS = 50
FIRST_STEPS = 2


class Pace:
    """Average time of a step over about the last ``MEMORY_STEPS``. Frequent work between steps is included.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._average: float | None = None
        self._steps = 0

    def step(self) -> None:
        """A step is done."""
        now = self._clock()
        taken, self._last = now - self._last, now
        self._steps += 1
        if self._steps < FIRST_STEPS:
            # the first step includes compilation, allocation and first reads
            return
        weight = 1.0 / min(self._steps - FIRST_STEPS + 1, MEMORY_STEPS)
        self._average = taken if self._average is None else self._average + weight * (taken - self._average)

    def leave_out(self) -> None:
        """Exclude the time since the last step."""
        self._last = self._clock()

    def seconds_left(self, steps: int) -> float | None:
        """Seconds for ``steps`` more steps; ``None`` while unknown."""
        return None if self._average is None else steps * self._average
