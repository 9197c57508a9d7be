"""The strengths of several contestants: Bradley-Terry with ties (Davidson 1970).

A wins over B with a probability in proportion to ``exp(a)``, B wins in proportion to ``exp(b)``, and they tie in
proportion to ``exp(tie + (a + b) / 2)``. The fit is the maximum a posteriori with the Gaussian prior of the pair tool's
ranking; the intervals come from the observed information.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from modules.curation.ranking import PRIOR_STD, Floats
from modules.util.statistics.clustered import NORMAL_95

TIE_PRIOR_STD = 3.0
Counts = Mapping[tuple[int, int], tuple[int, int, int]]
"""For each pair (first, second) of contestants: wins of the first, wins of the second, ties."""


@dataclass(frozen=True)
class Strengths:
    """A fit.

    Args:
        mean: strengths (N,) in logits; their mean is about 0.
        covariance: (N + 1, N + 1), the readiness to call a tie last.
        tie: the readiness to call a tie.
    """

    mean: Floats
    covariance: Floats
    tie: float

    @property
    def leader(self) -> int:
        """The strongest contestant, or the first of equals."""
        return int(np.argmax(self.mean))

    def interval(self, contestant: int) -> tuple[float, float]:
        """95 % interval of a contestant's strength relative to the mean of all."""
        against = self._against_mean(contestant)
        middle = float(against[:-1] @ self.mean)
        half = NORMAL_95 * float(against @ self.covariance @ against) ** 0.5
        return (middle - half, middle + half)

    def _against_mean(self, contestant: int) -> Floats:
        count = len(self.mean)
        against = np.append(np.full(count, -1.0 / count), 0.0)
        against[contestant] += 1.0
        return against

    def most_useful(self, pairs: list[tuple[int, int]]) -> tuple[int, int]:
        """The pair whose next vote is expected to shrink the leader's interval most, or the first of equals."""
        against = self._against_mean(self.leader)
        information = np.linalg.inv(self.covariance)

        def left(pair: tuple[int, int]) -> float:
            _, expected = _expected(self.mean, self.tie, *pair)
            return float(against @ np.linalg.solve(information + expected, against))

        return min(pairs, key=lambda pair: (round(left(pair), 12), pair))


def _outcomes(count: int, first: int, second: int) -> Floats:
    """(3, N + 1): effect of a win of the first, a win of the second, and a tie on each parameter."""
    rows = np.zeros((3, count + 1))
    rows[0, first] = rows[1, second] = 1.0
    rows[2, [first, second]] = 0.5
    rows[2, -1] = 1.0
    return rows


def _expected(mean: Floats, tie: float, first: int, second: int) -> tuple[Floats, Floats]:
    """Probabilities of the three outcomes, and the information (N + 1, N + 1) of one vote."""
    rows = _outcomes(len(mean), first, second)
    logits = rows @ np.append(mean, tie)
    chances = np.exp(logits - logits.max())
    chances /= chances.sum()
    middle = chances @ rows
    return chances, (rows * chances[:, None]).T @ rows - np.outer(middle, middle)


def fit(count: int, counts: Counts) -> Strengths:
    """Fit the strengths of ``count`` contestants to these votes."""
    prior = np.append(np.full(count, PRIOR_STD**-2), TIE_PRIOR_STD**-2)
    found = np.zeros(count + 1)
    hessian = np.diag(prior)
    for _ in range(100):
        gradient, hessian = -prior * found, np.diag(prior)
        for (first, second), numbers in counts.items():
            votes = sum(numbers)
            chances, information = _expected(found[:-1], float(found[-1]), first, second)
            gradient = gradient + (np.array(numbers) - votes * chances) @ _outcomes(count, first, second)
            hessian = hessian + votes * information
        step = np.linalg.solve(hessian, gradient)
        found = found + step * min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-12))
        if float(np.abs(step).max()) < 1e-9:
            break
    covariance = np.asarray(np.linalg.inv(hessian), dtype=np.float64)
    return Strengths(found[:-1] - found[:-1].mean(), covariance, float(found[-1]))


def all_pairs(count: int) -> list[tuple[int, int]]:
    """Every pair of contestants."""
    return list(combinations(range(count), 2))
