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
_HALVINGS = 60


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
    """The interval that contains the true share with 95 % at any time.

    Args:
        ties: count as half for either side: the bounds for votes that are not ties are moved towards one half
            by the part of the votes that are.
    """
    count = wins + losses
    if count == 0:
        return (0.0, 1.0)
    low, high = _bounds(wins, losses)
    part = count / (count + ties)
    return (part * low + (1.0 - part) / 2.0, part * high + (1.0 - part) / 2.0)


def _bounds(wins: int, losses: int) -> tuple[float, float]:
    mixture, limit = float(log_mixture(wins, losses)), math.log(DECISIVE)
    best = wins / (wins + losses)

    def refuted(share: float) -> bool:
        won = wins * math.log(share) if wins else 0.0
        lost = losses * math.log1p(-share) if losses else 0.0
        return mixture - won - lost >= limit

    def edge(outside: float) -> float:
        inside = best
        for _ in range(_HALVINGS):
            middle = 0.5 * (inside + outside)
            if middle in (0.0, 1.0) or refuted(middle):
                outside = middle
            else:
                inside = middle
        return outside

    return (0.0 if wins == 0 else edge(0.0), 1.0 if losses == 0 else edge(1.0))
