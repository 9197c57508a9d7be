"""The arithmetic of curves, the log's tail, columns of cards."""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from modules.ui.form.CardBoard import _split
from modules.ui.run.CurvePlot import _nearest, smooth, thin, ticks
from modules.ui.state.curve_groups import group_curves
from modules.ui.state.LogTail import MAX_BYTES, LogTail
from modules.ui.state.RunHistory import MAX_POINTS, RunHistory, Series

NUMBERS = st.floats(-1e6, 1e6)


@given(st.lists(NUMBERS, min_size=1, max_size=60), st.floats(0, 0.99))
def test_smoothing_stays_between_the_extremes_and_keeps_constants(values: list[float], share: float) -> None:
    made = smooth(values, share)
    assert len(made) == len(values)
    room = 1e-6 * (1 + max(map(abs, values)))
    assert all(min(values) - room <= value <= max(values) + room for value in made)
    assert smooth(values, 0.0) == values


@given(NUMBERS, st.floats(1e-6, 1e6), st.integers(2, 12))
@example(low=-879609.9999999999, span=1e-06, count=6)
def test_ticks_are_inside_round_and_not_too_many(low: float, span: float, count: int) -> None:
    made = ticks(low, low + span, count)
    assert len(made) <= count + 1
    room = span * 1e-6 + math.ulp(abs(low) + span)
    assert all(low - room <= value <= low + span + room for value in made)


def test_ticks_of_nothing() -> None:
    assert ticks(2.0, 2.0, 5) == [2.0]
    assert ticks(0.0, math.inf, 5) == [0.0]


@given(st.lists(NUMBERS, min_size=1, max_size=500))
def test_thinning_keeps_peaks_and_order(values: list[float]) -> None:
    steps = [float(i) for i in range(len(values))]
    x, y = thin(steps, values, 40)
    assert len(x) <= max(40, 2)
    assert x == sorted(x)
    assert (max(y), min(y)) == (max(values), min(values))


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30, unique=True), st.floats(-10, 110))
def test_nearest(values: list[float], wanted: float) -> None:
    values.sort()
    index = _nearest(values, wanted)
    assert abs(values[index] - wanted) == min(abs(value - wanted) for value in values)


def test_a_long_curve_stays_bounded_and_keeps_its_mean() -> None:
    series = Series()
    for step in range(1, 3 * MAX_POINTS + 1):
        series.add(step, 1.0 if step % 2 else 3.0)
    assert len(series.steps) < MAX_POINTS
    assert series.steps == sorted(series.steps)
    assert abs(sum(series.values) / len(series.values) - 2.0) < 1e-6
    assert series.newest == 3.0


def test_a_curve_goes_back_when_the_run_does() -> None:
    series = Series()
    for step in (1, 2, 3, 4):
        series.add(step, float(step))
    series.add(3, 30.0)
    assert (series.steps, series.values) == ([1, 2, 3], [1.0, 2.0, 30.0])
    series.add(4, math.nan)
    assert series.steps == [1, 2, 3]


def test_a_run_says_whether_it_began_or_resumed() -> None:
    history = RunHistory()
    for source in (None, "backup/2-backup-4-1"):
        history.take([{"kind": "run_started", "total_steps": 9, "device": "cpu", "resumed_from": source}])
    assert [message.text for message in history.messages] == [
        "Training started on cpu", "Training resumed on cpu"
    ]  # fmt: skip
    assert history.total_steps == 9


def test_damaged_events_do_no_harm() -> None:
    history = RunHistory()
    history.take(
        [
            {"kind": "step", "metrics": {"loss/train_step": "nan", "a": True, "b": 1}, "progress": None},
            {"kind": "step", "metrics": 5},
            {"kind": "sample", "path": 7},
            {"kind": "unheard_of"},
            {"kind": "error", "message": "m", "hint": "h", "t": "late"},
        ]
    )
    assert history.series["b"].values == [1.0]
    assert history.samples == []
    assert history.messages[-1].text == "m - h"


def test_curves_are_drawn_together_by_meaning() -> None:
    tags = ["dpo/accuracy", "dpo/val_accuracy", "loss/train_step", "lr/unet", "dpo/margin_by_t/q1", "odd"]
    groups = group_curves([*tags, "loss/dpo"])
    assert groups["Accuracy"] == {"dpo/accuracy": "training", "dpo/val_accuracy": "validation"}
    assert groups["Loss"] == {"loss/train_step": "training"}
    assert groups["Learning rate"] == {"lr/unet": "unet"}
    assert groups["Margin by timestep"] == {"dpo/margin_by_t/q1": "q1"}
    assert sorted(tag for members in groups.values() for tag in members) == sorted(tags)


def test_curves_of_online_runs() -> None:
    tags = [
        "loss/train_step", "rl/loss", "rl/reward_mean", "rl/clipfrac", "rl/zero_std_ratio", "rl/images",
        *(f"reward/{name}/{fact}" for name in ("a", "b", "total") for fact in ("mean", "zero_std_ratio")),
    ]  # fmt: skip
    groups = group_curves(tags)
    assert list(groups)[:2] == ["Loss", "Reward"]
    assert groups["Reward"] == {"rl/reward_mean": "mean of an epoch"}
    assert groups["Mean of each reward"] == {"reward/a/mean": "a", "reward/b/mean": "b"}
    assert groups["Prompts with equal scores"] == {
        "reward/a/zero_std_ratio": "a",
        "reward/b/zero_std_ratio": "b",
    }
    assert groups["Online training"] == {"rl/images": "images"}


def test_log_tail(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    tail = LogTail(path)
    assert tail.poll() == ("", False)
    path.write_bytes(b"one\ntwo 1%\rtwo 2%\nthr")
    assert tail.poll() == ("one\ntwo 2%\n", True)
    with path.open("ab") as stream:
        stream.write(b"ee\n\xff\n")
    assert tail.poll() == ("three\n\ufffd\n", False)
    assert tail.poll() == ("", False)
    path.write_bytes(b"new\n")
    assert tail.poll() == ("new\n", True)
    with path.open("ab") as stream:
        stream.write(b"x" * 50 + b"\n")
        stream.write(b"y\n" * MAX_BYTES)
    text, fresh = tail.poll()
    assert fresh and len(text) <= MAX_BYTES


def test_a_log_that_cannot_be_read_for_a_while_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"one\n")
    tail = LogTail(path)
    assert tail.poll() == ("one\n", True)
    path.rename(tmp_path / "aside.txt")
    path.mkdir()
    text, fresh = tail.poll()
    assert (text, fresh) == (f"The log file {path} cannot be read: Is a directory\n", False)
    assert tail.poll() == ("", False)
    path.rmdir()
    (tmp_path / "aside.txt").rename(path)
    with path.open("ab") as stream:
        stream.write(b"two\n")
    assert tail.poll() == ("two\n", False)


@given(st.lists(st.integers(1, 900), max_size=14), st.integers(1, 3))
def test_cards_keep_their_order_and_fit_the_columns(heights: list[int], columns: int) -> None:
    made = _split(heights, columns)
    assert [index for column in made for index in column] == list(range(len(heights)))
    assert len(made) <= columns
    if heights:
        tallest = max(sum(heights[i] for i in column) for column in made)
        assert tallest <= sum(heights) / columns + max(heights)
