"""Strengths of several contestants, with ties."""

from __future__ import annotations

import numpy as np

from modules.arena.davidson import all_pairs, fit

TRUE = np.array([0.0, 0.9, -0.5])
TIE = -0.7


def chances(first: int, second: int) -> np.ndarray:
    """Win of the first, win of the second, tie: as Davidson writes them."""
    a, b = np.exp(TRUE[first]), np.exp(TRUE[second])
    parts = np.array([a, b, np.exp(TIE) * np.sqrt(a * b)])
    return parts / parts.sum()


def counted_votes(each: int, rng: np.random.Generator) -> dict[tuple[int, int], tuple[int, int, int]]:
    return {pair: tuple(map(int, rng.multinomial(each, chances(*pair)))) for pair in all_pairs(3)}


def test_many_votes_give_the_true_strengths():
    found = fit(3, counted_votes(20_000, np.random.default_rng(1)))
    assert np.abs(found.mean - (TRUE - TRUE.mean())).max() < 0.05
    assert abs(found.tie - TIE) < 0.05
    assert found.leader == 1


def test_the_intervals_hold_the_truth():
    rng = np.random.default_rng(2)
    held = []
    for _ in range(200):
        found = fit(3, counted_votes(40, rng))
        for i, true in enumerate(TRUE - TRUE.mean()):
            low, high = found.interval(i)
            held.append(low <= true <= high)
    assert 0.92 <= np.mean(held) <= 0.99


def test_the_next_question_shrinks_the_leaders_interval_most():
    votes = {(0, 1): (300, 200, 50), (0, 2): (600, 40, 90), (1, 2): (60, 9, 20)}
    found = fit(3, votes)
    pair = found.most_useful(all_pairs(3))

    def width_after(pair: tuple[int, int]) -> float:
        """Expected over the outcomes that the fit expects."""
        widths = []
        for place in range(3):
            more = list(votes[pair])
            more[place] += 1
            low, high = fit(3, {**votes, pair: tuple(more)}).interval(found.leader)
            widths.append(high - low)
        a, b = np.exp(found.mean[list(pair)])
        parts = np.array([a, b, np.exp(found.tie) * np.sqrt(a * b)])
        return float(parts @ widths / parts.sum())

    assert pair == min(all_pairs(3), key=width_after)


def test_only_wins_and_no_votes_are_no_trouble():
    assert np.allclose(fit(3, {}).mean, 0.0)
    found = fit(2, {(0, 1): (500, 0, 0)})
    assert np.isfinite(found.mean).all() and found.mean[0] > 2.0
