"""The gain of an adapter in images: against every choice written out, and against known distributions."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.demo.best_of_n import best_of_curve, best_of_n, expected_best

LIKING = st.floats(-2.0, 1.0, allow_nan=False)


@given(st.lists(LIKING, min_size=1, max_size=8), st.data())
def test_the_best_of_every_choice(liking, data):
    n = data.draw(st.integers(1, len(liking)))
    chosen = [max(one) for one in combinations(liking, n)]
    assert expected_best(liking, n) == pytest.approx(sum(chosen) / len(chosen), abs=1e-12)


def test_evenly_spread_liking():
    """Of the values 1 to M the best of n is n (M + 1) / (n + 1)."""
    values = list(range(1, 41))
    for n in (1, 2, 5, 16):
        assert expected_best(values, n) == pytest.approx(n * 41 / (n + 1))


@given(st.lists(st.lists(LIKING, min_size=3, max_size=6), min_size=1, max_size=4))
def test_the_curve_rises_from_the_mean(liking):
    curve = best_of_curve(liking)
    assert len(curve) == min(len(one) for one in liking)
    assert curve[0] == pytest.approx(sum(sum(one) / len(one) for one in liking) / len(liking))
    assert all(after >= before - 1e-12 for before, after in pairwise(curve))


def test_between_whole_numbers():
    base = [[0.0, 0.5, 1.0], [1.0, 1.5, 2.0]]
    curve = best_of_curve(base)
    assert curve == pytest.approx([1.0, 4 / 3, 1.5])
    assert best_of_n(base, 4 / 3) == pytest.approx(2.0)
    assert best_of_n(base, 7 / 6) == pytest.approx(1.5)
    assert best_of_n(base, 0.2) == 1.0 and best_of_n(base, 9.0) == 3.0


def test_prompts_weigh_the_same_whatever_their_number_of_images():
    assert best_of_curve([[0.0] * 20, [1.0, 1.0]]) == pytest.approx([0.5, 0.5])
    assert best_of_n([[0.0] * 20, [1.0] * 20], 0.6) == 16.0


@pytest.mark.parametrize("liking", [[], [[]], [[1.0], []]])
def test_nothing_to_compare_with(liking):
    with pytest.raises(ValueError, match="every prompt"):
        best_of_curve(liking)


def test_more_than_there_are():
    with pytest.raises(ValueError, match="best of 3 of 2"):
        expected_best([0.0, 1.0], 3)
