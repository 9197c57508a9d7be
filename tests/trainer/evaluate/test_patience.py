"""When a run gives up: tables of validations and the counter after each."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest

from modules.trainer.evaluate.patience import Patience, Verdict
from modules.util.enum.choices import DPOPatienceMetric as Metric
from modules.util.enum.DPOPatienceMode import DPOPatienceMode as Mode

NAN, INF = math.nan, math.inf
BOTH_METRICS = (Metric.VAL_ACCURACY, Metric.VAL_LOSS)


def counters(mode: Mode, rows: Sequence[tuple[float, float]], value: int = 100) -> list[int]:
    patience = Patience(BOTH_METRICS, mode, value)
    return [patience.update({"val_accuracy": accuracy, "val_loss": loss}).counter for accuracy, loss in rows]


TABLES = [
    # (accuracy, loss) of each validation, counters under EITHER, counters under BOTH
    pytest.param([(0.5, 0.7), (0.6, 0.6), (0.7, 0.5)], [0, 0, 0], [0, 0, 0], id="both better"),
    pytest.param([(0.5, 0.7), (0.5, 0.7), (0.5, 0.7)], [0, 1, 2], [0, 1, 2], id="nothing moves"),
    pytest.param([(0.5, 0.7), (0.6, 0.7), (0.7, 0.8)], [0, 1, 2], [0, 0, 0], id="only accuracy better"),
    pytest.param([(0.5, 0.7), (0.5, 0.6), (0.4, 0.5)], [0, 1, 2], [0, 0, 0], id="only loss better"),
    pytest.param(
        [(0.5, 0.7), (0.4, 0.8), (0.4, 0.8), (0.6, 0.6)], [0, 1, 2, 0], [0, 1, 2, 0], id="starts again at 0"
    ),
    pytest.param(
        [(0.5, 0.7), (0.4, 0.8), (0.45, 0.75)], [0, 1, 2], [0, 1, 2], id="better than the last, not the best"
    ),
    pytest.param([(0.0, 99.0)], [0], [0], id="the first is always better"),
    pytest.param(
        [(0.5, 0.7), (0.500004, 0.699996)], [0, 1], [0, 1], id="below five decimals nothing has moved"
    ),
    pytest.param([(0.5, 0.7), (0.50001, 0.69999)], [0, 0], [0, 0], id="the fifth decimal counts"),
    pytest.param([(NAN, 0.7), (0.5, NAN), (0.6, 0.6)], [1, 2, 0], [0, 0, 0], id="NaN stalls"),
    pytest.param([(NAN, NAN), (NAN, NAN)], [1, 2], [1, 2], id="nothing but NaN"),
    pytest.param(
        [(0.5, 0.7), (INF, -INF), (0.6, 0.6)], [0, 1, 0], [0, 1, 0], id="infinite is no progress, and no best"
    ),
]


@pytest.mark.parametrize(("rows", "either", "both"), TABLES)
def test_counters(rows: list[tuple[float, float]], either: list[int], both: list[int]) -> None:
    assert counters(Mode.EITHER, rows) == either
    assert counters(Mode.BOTH, rows) == both


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("value", [1, 3])
def test_it_stops_when_the_counter_reaches_the_value(mode: Mode, value: int) -> None:
    patience = Patience(BOTH_METRICS, mode, value)
    same = {"val_accuracy": 0.5, "val_loss": 0.5}
    assert [patience.update(same).stop for _ in range(value + 2)] == [False] * value + [True, True]


def test_the_verdict_names_what_stalled_and_what_was_no_number() -> None:
    patience = Patience((*BOTH_METRICS, Metric.VAL_CHOSEN_REWARD), Mode.BOTH, 5)
    patience.update({"val_accuracy": 0.5, "val_loss": 0.5, "val_chosen_reward": 0.1})
    verdict = patience.update({"val_accuracy": 0.5, "val_loss": NAN, "val_chosen_reward": 0.2})
    assert verdict == Verdict(("val_accuracy", "val_loss"), 0, False, ("val_loss",))


def test_rewards_are_better_when_higher() -> None:
    patience = Patience([Metric.VAL_CHOSEN_REWARD], Mode.EITHER, 5)
    rewards = [-0.3, -0.2, -0.25, -0.1]
    assert [patience.update({"val_chosen_reward": reward}).counter for reward in rewards] == [0, 0, 1, 0]


def test_metrics_nobody_watches_do_not_matter() -> None:
    patience = Patience([Metric.VAL_LOSS], Mode.EITHER, 5)
    values = {"val_loss": 0.5, "val_accuracy": NAN, "val_rejected_reward": NAN}
    assert patience.update(values) == Verdict((), 0, False)


def test_it_resumes_from_json_as_if_never_interrupted() -> None:
    rows = [(0.5, 0.7), (0.5, 0.8), (0.6, 0.9), (0.55, 0.6), (0.6, 0.6), (0.6, 0.6)]
    for mode in Mode:
        straight = counters(mode, rows)
        first = Patience(BOTH_METRICS, mode, 100)
        for accuracy, loss in rows[:3]:
            first.update({"val_accuracy": accuracy, "val_loss": loss})
        second = Patience(BOTH_METRICS, mode, 100)
        second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
        rest = [second.update({"val_accuracy": a, "val_loss": b}).counter for a, b in rows[3:]]
        assert rest == straight[3:]


def test_before_the_first_validation_the_state_is_plain_json() -> None:
    patience = Patience(BOTH_METRICS, Mode.EITHER, 2)
    state = json.loads(json.dumps(patience.state_dict(), allow_nan=False))
    assert state == {"counter": 0, "bests": {}}
    other = Patience(BOTH_METRICS, Mode.EITHER, 2)
    other.load_state_dict(state)
    assert other.update({"val_accuracy": 0.0, "val_loss": 9.0}) == Verdict((), 0, False)


def test_metrics_that_are_watched_anew_start_anew() -> None:
    former = Patience([Metric.VAL_LOSS], Mode.EITHER, 5)
    former.update({"val_loss": 0.5})
    patience = Patience(BOTH_METRICS, Mode.EITHER, 5)
    patience.load_state_dict(former.state_dict())
    assert patience.bests == {"val_accuracy": -INF, "val_loss": 0.5}
