from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.objective.AdaptiveBeta import AdaptiveBeta

margins = st.lists(st.floats(-1.0, 1.0), max_size=40)


@given(beta0=st.floats(0.0, 1e4), history=margins)
def test_stays_in_range(beta0: float, history: list[float]) -> None:
    adaptive = AdaptiveBeta(beta0)
    assert adaptive.beta == beta0
    for margin in history:
        beta = adaptive.update(margin)
        assert beta0 / 4 <= beta <= 4 * beta0
        assert beta == adaptive.beta


def test_reaches_both_ends() -> None:
    rising, falling = AdaptiveBeta(1000.0), AdaptiveBeta(1000.0)
    for _ in range(30):
        rising.update(0.0)
        falling.update(0.0)
    assert rising.update(1.0) == 4000.0
    assert falling.update(-1.0) == 250.0


def test_a_steady_margin_leaves_beta_alone() -> None:
    adaptive = AdaptiveBeta(5000.0)
    for _ in range(50):
        assert adaptive.update(3e-4) == pytest.approx(5000.0, rel=1e-9)


def test_moves_with_the_recent_margin() -> None:
    adaptive = AdaptiveBeta(100.0)
    for _ in range(20):
        adaptive.update(0.001)
    assert adaptive.update(0.01) > 100.0
    for _ in range(20):
        adaptive.update(-0.01)
    assert adaptive.beta < 100.0


def test_not_finite_is_left_out() -> None:
    adaptive = AdaptiveBeta(100.0)
    adaptive.update(0.001)
    state = adaptive.state_dict()
    adaptive.update(float("nan"))
    adaptive.update(float("inf"))
    assert adaptive.state_dict() == state


@given(history=margins, rest=margins)
def test_resumes_exactly(history: list[float], rest: list[float]) -> None:
    whole, first, second = AdaptiveBeta(5000.0), AdaptiveBeta(5000.0), AdaptiveBeta(5000.0)
    for margin in history:
        whole.update(margin)
        first.update(margin)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [whole.update(m) for m in rest] == [second.update(m) for m in rest]
    assert whole.beta == second.beta


def test_bad_values() -> None:
    for beta0 in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="finite"):
            AdaptiveBeta(beta0)
    with pytest.raises(ValueError, match="damaged"):
        AdaptiveBeta(1.0).load_state_dict({"fast": float("nan"), "slow": 0.0, "updates": 1.0})
