"""Tests whether one of two is really preferred. Test and interval may be evaluated after every vote.

The test is a bet against "each is preferred half of the time": the likelihood of the votes under every share
from 0 to 1, weighted equally (Beta(1, 1)), over their likelihood under one half. While both are equally good
this ratio reaches ``DECISIVE`` with a probability of at most 1/20 at any time (Ville's inequality), however
often one looks and whenever one stops. The interval holds every share against which the same bet has not won.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

DECISIVE = 20.0
_PARTS, _ROUNDS = 16, 10
"""An edge of the interval is narrowed down to one of this many parts, this many times."""


@lru_cache(maxsize=4)
def _log_factorials(up_to: int) -> npt.NDArray[np.float64]:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, up_to + 1.0)))])


def log_mixture(wins: npt.ArrayLike, losses: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Logarithm of the likelihood of a sequence of votes, averaged over all shares from 0 to 1: log B(w + 1, l + 1)."""
    won, lost = np.asarray(wins, dtype=np.int64), np.asarray(losses, dtype=np.int64)
    size = 1 << int(won.max(initial=0) + lost.max(initial=0) + 1).bit_length()
    table = _log_factorials(max(size, 1024))
    return np.asarray(table[won] + table[lost] - table[won + lost + 1])


def log_evidence(wins: npt.ArrayLike, losses: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Logarithm of the evidence (e-value) against one half after these votes; ties do not count."""
    count = np.asarray(wins, dtype=np.int64) + np.asarray(losses, dtype=np.int64)
    return np.asarray(log_mixture(wins, losses) + count * math.log(2.0))


def evidence(wins: int, losses: int) -> float:
    """The evidence after these votes; ``DECISIVE`` or more decides."""
    return math.exp(min(700.0, float(log_evidence(wins, losses))))


def interval(wins: int, losses: int, ties: int = 0) -> tuple[float, float]:
    """The interval that contains the true share, in which a tie counts as half, with 95 % at any time.

    It is [0, 1] before the first vote.
    """
    count = wins + losses + ties
    if count == 0:
        return (0.0, 1.0)
    best = (wins + ties / 2) / count
    weights = _log_weights(wins, losses, ties)
    low = 0.0 if best == 0.0 else _edge(wins, losses, weights, best, 0.0)
    high = 1.0 if best == 1.0 else _edge(wins, losses, weights, best, 1.0)
    return (low, high)


def _log_weights(wins: int, losses: int, ties: int) -> npt.NDArray[np.float64]:
    """(ties + 1,): weights of the terms of the bet in which 0, 1, ... ties count as wins and all others as losses."""
    as_wins = np.arange(ties + 1)
    table = _log_factorials(max(ties + 1, 1024))
    choices = table[ties] - table[as_wins] - table[ties - as_wins]
    return np.asarray(choices - ties * math.log(2.0) + log_mixture(wins + as_wins, losses + ties - as_wins))


def _log_bets(
    wins: int, losses: int, log_weights: npt.NDArray[np.float64], share_Q: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Logarithm of what the bet has won against each share.

    Against a share s, the bet on a share q pays q / s for a win, (1 - q) / (1 - s) for a loss, and the mean of both for
    a tie. It is fair if s is the true share, however the votes that are not ties are divided, and a tie pays 1 against
    one half. The product is expanded in the number of ties that count as wins.
    """
    as_wins = np.arange(len(log_weights))
    won, lost = wins + as_wins, losses + as_wins[::-1]
    terms_QT = log_weights - np.outer(np.log(share_Q), won) - np.outer(np.log1p(-share_Q), lost)
    top_Q = terms_QT.max(axis=1)
    return np.asarray(top_Q + np.log(np.exp(terms_QT - top_Q[:, None]).sum(axis=1)))


def _edge(
    wins: int, losses: int, log_weights: npt.NDArray[np.float64], inside: float, outside: float
) -> float:
    """The first share towards ``outside`` against which the bet has won; it has lost against ``inside``."""
    for _ in range(_ROUNDS):
        share_Q = np.linspace(inside, outside, _PARTS + 1)
        refuted_Q = _log_bets(wins, losses, log_weights, share_Q[1:-1]) >= math.log(DECISIVE)
        first = int(refuted_Q.argmax()) + 1 if refuted_Q.any() else _PARTS
        inside, outside = float(share_Q[first - 1]), float(share_Q[first])
    return outside
