"""Estimates the quality of each image of a group from comparisons: Elo, and Bradley-Terry with a Gaussian
prior.

Elo keeps one number per image (Elo 1978). Bradley-Terry (1952) is fitted by maximum a posteriori with a
Laplace approximation of the posterior, so that it also knows how certain an order is. A tie counts as half
a win for each side in both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ELO_START = 1500.0
ELO_K = 32.0
DRAWS = 512
WHOLE_FIT = 256
"""Up to this many images, the fit includes those that were never compared; sessions of usual size keep their
figures to the last bit.
"""
PRIOR_STD = 1.8
"""Standard deviation of quality among images of one prompt, in logits, preferred by the bundled simulation."""


@dataclass(frozen=True)
class Comparison:
    """One answer between two images of a group, by index.

    ``outcome`` is 1.0 when ``first`` was preferred, 0.0 when ``second`` was, 0.5 for a tie.
    """

    first: int
    second: int
    outcome: float

    def __post_init__(self) -> None:
        if self.first == self.second:
            raise ValueError("an image cannot be compared with itself")
        if self.outcome not in (0.0, 0.5, 1.0):
            raise ValueError(f"outcome must be 0, 0.5 or 1, not {self.outcome}")


def elo_ratings(count: int, comparisons: Sequence[Comparison]) -> Floats:
    """Ratings (count,) after the comparisons in order. All start at 1500, K = 32."""
    ratings = np.full(count, ELO_START)
    for c in comparisons:
        expected = 1.0 / (1.0 + 10.0 ** ((ratings[c.second] - ratings[c.first]) / 400.0))
        change = ELO_K * (c.outcome - expected)
        ratings[c.first] += change
        ratings[c.second] -= change
    return ratings


def images_of(comparisons: Sequence[Comparison]) -> set[int]:
    """The images that were compared."""
    return {image for c in comparisons for image in (c.first, c.second)}


@lru_cache(maxsize=64)
def _normals(count: int) -> Floats:
    """(DRAWS, count) standard normal numbers, always the same."""
    return np.random.default_rng(0).standard_normal((DRAWS, count))


@dataclass(frozen=True)
class Posterior:
    """Quality of the images of one group, in logits.

    Images that were never compared are independent of all others, so that a prompt with thousands of images needs
    no matrix of all of them.

    Args:
        mean: expected quality (N,).
        covariance: of the fitted images (M, M), in the order of ``rows``; they include all compared images.
        rows: the row of each fitted image.
        prior_variance: variance of every other image.
    """

    mean: Floats
    covariance: Floats
    rows: Mapping[int, int]
    prior_variance: float

    def _shared(self, first: int, second: int) -> float:
        """Covariance of two images; the variance if they are the same one."""
        row, column = self.rows.get(first), self.rows.get(second)
        if row is None or column is None:
            return self.prior_variance if first == second else 0.0
        return float(self.covariance[row, column])

    def difference_std(self, first: int, second: int) -> float:
        """Standard deviation of quality[first] - quality[second]."""
        apart = self._shared(first, first) + self._shared(second, second) - 2.0 * self._shared(first, second)
        return math.sqrt(max(apart, 1e-12))

    def probability_ordered(self, better: int, worse: int) -> float:
        """Posterior probability that ``better`` really is better than ``worse``."""
        gap = (self.mean[better] - self.mean[worse]) / self.difference_std(better, worse)
        return 0.5 * (1.0 + math.erf(float(gap) / math.sqrt(2.0)))

    def expected_gain(self, sign: float, inside: int, outside: int) -> float:
        """Expected improvement, in logits, of replacing ``inside`` by ``outside``.

        Args:
            sign: 1 if high quality is wanted, -1 if low quality is.
        """
        std = self.difference_std(inside, outside)
        gap = sign * float(self.mean[outside] - self.mean[inside])
        z = gap / std
        density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        return std * density + gap * 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))

    def expected_spread(self, images: Sequence[int]) -> float:
        """Expected difference of quality between the truly best and the truly worst of ``images``, in logits,
        over fixed draws from the posterior."""
        return float(self._spreads(images).mean())

    def probability_apart(self, images: Sequence[int], difference: float) -> float:
        """Posterior probability that any two of ``images`` differ by more than ``difference`` logits."""
        return float((self._spreads(images) > difference).mean())

    def _spreads(self, images: Sequence[int]) -> Floats:
        """Best minus worst quality (DRAWS,) of ``images``, over fixed draws."""
        factor = np.linalg.cholesky(self._joint(images))
        quality = self.mean[list(images)] + _normals(len(images)) @ factor.T
        return np.asarray(quality.max(axis=1) - quality.min(axis=1), dtype=np.float64)

    def _joint(self, images: Sequence[int]) -> Floats:
        """Covariance of these images, in this order."""
        known = [place for place, image in enumerate(images) if image in self.rows]
        rows = [self.rows[images[place]] for place in known]
        joint = self.prior_variance * np.eye(len(images))
        joint[np.ix_(known, known)] = self.covariance[np.ix_(rows, rows)]
        return joint


def bradley_terry(count: int, comparisons: Sequence[Comparison]) -> Posterior:
    """Maximum a posteriori Bradley-Terry fit by Newton's method, with the Laplace covariance.

    Args:
        count: number of images N in the group, at least 1.
    """
    fitted = list(range(count)) if count <= WHOLE_FIT else sorted(images_of(comparisons))
    rows = {image: row for row, image in enumerate(fitted)}
    precision = np.eye(len(fitted)) / PRIOR_STD**2
    quality = np.zeros(len(fitted))
    first = np.array([rows[c.first] for c in comparisons], dtype=np.intp)
    second = np.array([rows[c.second] for c in comparisons], dtype=np.intp)
    outcome = np.array([c.outcome for c in comparisons])
    hessian: Floats = precision
    for _ in range(50 if comparisons else 0):
        probability = 1.0 / (1.0 + np.exp(-(quality[first] - quality[second])))
        gradient = quality / PRIOR_STD**2
        np.add.at(gradient, first, probability - outcome)
        np.subtract.at(gradient, second, probability - outcome)
        weight = probability * (1.0 - probability)
        hessian = precision.copy()
        np.add.at(hessian, (first, first), weight)
        np.add.at(hessian, (second, second), weight)
        np.subtract.at(hessian, (first, second), weight)
        np.subtract.at(hessian, (second, first), weight)
        step = np.linalg.solve(hessian, gradient)
        quality = quality - step
        if float(np.abs(step).max()) < 1e-8:
            break
    mean = np.zeros(count)
    mean[fitted] = quality
    covariance = np.asarray(np.linalg.inv(hessian), dtype=np.float64)
    return Posterior(mean, covariance, rows, 1.0 / (1.0 / PRIOR_STD**2))
