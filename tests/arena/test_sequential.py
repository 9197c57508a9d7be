"""The test that may be looked at after every vote: false alarms, how soon it decides, and its interval."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from modules.arena.sequential import DECISIVE, evidence, interval, log_evidence

SESSIONS, VOTES = 2000, 200


def sessions(share: float, ties: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """(sessions, votes) each: wins and losses after every vote."""
    rng = np.random.default_rng(7)
    counts = rng.random((SESSIONS, VOTES)) >= ties
    wins = (rng.random((SESSIONS, VOTES)) < share) & counts
    return wins.cumsum(axis=1), (counts & ~wins).cumsum(axis=1)


def decided_after(share: float, ties: float = 0.0) -> np.ndarray:
    """(sessions,) the vote after which each would have stopped; infinite where none did."""
    stops = log_evidence(*sessions(share, ties)) >= math.log(DECISIVE)
    return np.where(stops.any(axis=1), stops.argmax(axis=1) + 1.0, np.inf)


@pytest.mark.parametrize("ties", [0.0, 0.3])
def test_false_alarms_with_a_look_after_every_vote(ties):
    assert np.isfinite(decided_after(0.5, ties)).mean() <= 0.05


@pytest.mark.parametrize(("share", "median"), [(0.7, 47), (0.8, 19), (0.9, 12)])
def test_how_soon_it_decides(share, median):
    assert np.median(decided_after(share)) == pytest.approx(median, rel=0.1)


def test_a_slight_preference_often_stays_undecided():
    assert 0.4 < np.isfinite(decided_after(0.6)).mean() < 0.6


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (31, 9), (3, 40), (100, 100)])
def test_the_evidence_is_the_ratio_of_likelihoods(wins, losses):
    count = wins + losses
    exact = Fraction(math.factorial(wins) * math.factorial(losses), math.factorial(count + 1)) * 2**count
    assert evidence(wins, losses) == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize(
    ("share", "ties", "looks"),
    [
        (0.5, 0.0, range(9, VOTES, 10)),
        (0.8, 0.0, range(9, VOTES, 10)),
        (0.7, 0.4, range(9, VOTES, 10)),
        (1.0, 0.0, range(9, VOTES, 10)),
        (0.9, 0.3, range(8)),
        (1.0, 0.5, (0, 1, 2, 4, 7, 11, 15)),
    ],
)
def test_the_truth_stays_within_every_interval(share, ties, looks):
    wins, losses = (counts[:200] for counts in sessions(share, ties))
    truth = (1.0 - ties) * share + ties / 2
    bounds_of = cache(interval)
    kept = 0
    for won, lost in zip(wins, losses, strict=True):
        bounds = [bounds_of(int(won[i]), int(lost[i]), i + 1 - int(won[i] + lost[i])) for i in looks]
        kept += all(low <= truth <= high for low, high in bounds)
    assert kept / len(wins) >= 0.93


@pytest.mark.parametrize(
    ("wins", "losses", "ties"), [(5, 2, 0), (31, 9, 5), (0, 3, 4), (12, 0, 12), (0, 0, 9)]
)
def test_the_interval_ends_where_the_bet_has_won_20_times_the_stake(wins, losses, ties):
    share_Q = np.linspace(0.0, 1.0, 20001)[1:-1]
    for edge in interval(wins, losses, ties):
        if 0.0 < edge < 1.0:
            won_Q, lost_Q = share_Q / edge, (1.0 - share_Q) / (1.0 - edge)
            bet = np.mean(won_Q**wins * lost_Q**losses * (0.5 * (won_Q + lost_Q)) ** ties)
            assert bet == pytest.approx(20.0, rel=1e-3)


def test_the_interval_excludes_one_half_exactly_where_the_test_decides():
    for wins in range(40):
        for losses in range(40 - wins):
            low, high = interval(wins, losses, 3)
            assert (low > 0.5 or high < 0.5) == (evidence(wins, losses) > DECISIVE)
            assert low - 1e-9 <= (wins + 1.5) / (wins + losses + 3) <= high + 1e-9
