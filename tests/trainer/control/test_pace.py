"""How long the rest will take, on a clock that is set by hand."""

from __future__ import annotations

import pytest

from modules.trainer.control.Pace import MEMORY_STEPS, Pace


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def steps(pace: Pace, clock: Clock, *seconds: float) -> None:
    for taken in seconds:
        clock.now += taken
        pace.step()


def test_nothing_is_known_before_the_second_step() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.seconds_left(10) is None
    steps(pace, clock, 30.0)
    assert pace.seconds_left(10) is None
    steps(pace, clock, 2.0)
    assert pace.seconds_left(10) == 20.0


def test_it_is_an_average_without_the_slow_first_step() -> None:
    clock = Clock()
    pace = Pace(clock)
    steps(pace, clock, 1000.0, 1.0, 2.0, 3.0)
    assert pace.seconds_left(1) == pytest.approx(2.0)
    assert pace.seconds_left(0) == 0.0


def test_work_between_steps_can_be_left_out() -> None:
    clock = Clock()
    pace = Pace(clock)
    steps(pace, clock, 1.0, 1.0)
    clock.now += 500.0
    pace.leave_out()
    steps(pace, clock, 1.0)
    assert pace.seconds_left(1) == pytest.approx(1.0)


def test_what_is_long_ago_is_forgotten() -> None:
    clock = Clock()
    pace = Pace(clock)
    steps(pace, clock, *[1.0] * (MEMORY_STEPS + 1))
    steps(pace, clock, *[3.0] * (10 * MEMORY_STEPS))
    assert pace.seconds_left(1) == pytest.approx(3.0, abs=0.01)
