"""What is due when: by position for steps and epochs, by the clock for times."""

from __future__ import annotations

from itertools import pairwise

import pytest

from modules.trainer.control.Interval import Interval, ends_a_tenth
from modules.util.enum.choices import TimeUnit
from modules.util.TrainProgress import TrainProgress

PER_EPOCH = 3


def due_steps(interval: Interval, first: int = 0, last: int = 12) -> list[int]:
    """Steps (counted from 1) after which it was due, in epochs of three steps; asked as the loop asks."""
    progress = TrainProgress(first // PER_EPOCH, first % PER_EPOCH, first % PER_EPOCH, first)
    found = []
    for _ in range(first, last):
        progress.advance(1)
        ended = progress.epoch_step == PER_EPOCH
        if ended:
            progress.next_epoch()
        if interval.due(progress, ended):
            interval.restart()
            found.append(progress.global_step)
    return found


@pytest.mark.parametrize("total", [1, 2, 5, 9, 10, 11, 25, 99, 120, 1234])
def test_between_two_ends_of_a_tenth_lies_at_most_a_tenth(total):
    ends = [step for step in range(total + 1) if ends_a_tenth(step, total)]
    assert len(ends) <= 9 and total not in ends and 0 not in ends
    # rounded up: no step can be lost in part
    assert max(b - a for a, b in pairwise([0, *ends, total])) <= -(-total // 10)


def test_tenths_of_a_run():
    assert [s for s in range(121) if ends_a_tenth(s, 120)] == [12, 24, 36, 48, 60, 72, 84, 96, 108]
    assert [s for s in range(4) if ends_a_tenth(s, 3)] == [1, 2]


@pytest.mark.parametrize(
    ("after", "unit", "expected"),
    [
        (1, TimeUnit.NEVER, []),
        (0, TimeUnit.NEVER, []),
        (0, TimeUnit.ALWAYS, list(range(1, 13))),
        (1, TimeUnit.STEP, list(range(1, 13))),
        (5, TimeUnit.STEP, [5, 10]),
        (13, TimeUnit.STEP, []),
        (1, TimeUnit.EPOCH, [3, 6, 9, 12]),
        (3, TimeUnit.EPOCH, [9]),
    ],
)
def test_positions(after: int, unit: TimeUnit, expected: list[int]) -> None:
    assert due_steps(Interval(after, unit)) == expected


@pytest.mark.parametrize("stopped_at", range(13))
@pytest.mark.parametrize(("after", "unit"), [(5, TimeUnit.STEP), (2, TimeUnit.EPOCH)])
def test_an_interrupted_run_does_the_same_at_the_same_places(
    after: int, unit: TimeUnit, stopped_at: int
) -> None:
    pieces = due_steps(Interval(after, unit), 0, stopped_at) + due_steps(Interval(after, unit), stopped_at)
    assert pieces == due_steps(Interval(after, unit))


@pytest.mark.parametrize(
    ("unit", "seconds"), [(TimeUnit.SECOND, 1.0), (TimeUnit.MINUTE, 60.0), (TimeUnit.HOUR, 3600.0)]
)
def test_times_count_from_the_start_and_from_the_last_restart(unit: TimeUnit, seconds: float) -> None:
    now = 1000.0
    interval = Interval(2, unit, lambda: now)
    progress = TrainProgress()
    assert not interval.due(progress, True)
    now = 1000.0 + 1.99 * seconds
    assert not interval.due(progress, True)
    now = 1000.0 + 2 * seconds
    assert interval.due(progress, False)
    assert interval.due(progress, False)
    interval.restart()
    assert not interval.due(progress, False)
    now += 2 * seconds
    assert interval.due(progress, False)
