"""95 % intervals of figures whose parts depend on one another: of many answers, few may be about different prompts.

What differs between prompts does not average out over the answers about one prompt. So the spread between prompts
decides how much is known about other prompts, by the linearised variance of a ratio (Cochran 1977, section 11.2) and
Student's distribution with one degree of freedom less than there are prompts.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import lru_cache
from statistics import NormalDist

NORMAL_95 = NormalDist().inv_cdf(0.975)
_MOST_FREEDOM = 1000
"""From here on, Student's distribution is as good as the normal one."""


@lru_cache(maxsize=256)
def student_95(freedom: int) -> float:
    """The value that Student's t stays within with 95 %, by its distribution in closed form (Abramowitz and Stegun
    26.7.3 and 26.7.4).
    """
    if freedom > _MOST_FREEDOM:
        return NORMAL_95
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 0.95 else (low, middle)
    return (low + high) / 2


def _within(t: float, freedom: int) -> float:
    """Probability that Student's t is between -t and t."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine, odd = math.sin(angle), math.cos(angle), freedom % 2
    if freedom == 1:
        return 2 * angle / math.pi
    term = total = cosine if odd else 1.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _sums(
    values: Sequence[float], groups: Sequence[Hashable], weights: Sequence[float]
) -> list[tuple[float, float]]:
    """Weighted sum of the values, and sum of the weights, of each group."""
    found: dict[Hashable, tuple[float, float]] = {}
    for value, group, weight in zip(values, groups, weights, strict=True):
        total, count = found.get(group, (0.0, 0.0))
        found[group] = total + weight * value, count + weight
    return list(found.values())


def _mean(sums: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Mean of all values, and the variance of this mean; infinite for a single group."""
    count = sum(n for _, n in sums)
    mean, groups = sum(total for total, _ in sums) / count, len(sums)
    if groups < 2:
        return mean, math.inf
    apart = sum((total - mean * n) ** 2 for total, n in sums)
    return mean, groups / (groups - 1) * apart / count**2


def mean_interval(values: Sequence[float], groups: Sequence[Hashable]) -> tuple[float, float] | None:
    """The interval of the mean over all groups like these; ``None`` with fewer than two groups.

    Args:
        groups: group (prompt) of each value.
    """
    sums = _sums(values, groups, [1.0] * len(values))
    if len(sums) < 2:
        return None
    mean, variance = _mean(sums)
    half = student_95(len(sums) - 1) * math.sqrt(variance)
    return mean - half, mean + half


def share_interval(
    right: Sequence[float],
    groups: Sequence[Hashable],
    weights: Sequence[float] | None = None,
    parts: int | None = None,
) -> tuple[float, float] | None:
    """The interval of a share over all groups like these; ``None`` without values.

    It is that of Wilson (1927) for the effective number of values: the number of independent ones that would determine
    the share as well (Korn and Graubard 1998). One group says nothing about others: the interval is [0, 1].

    Args:
        right: whether each is right, 0, 1 or 0.5.
        groups: group (prompt) of each.
        weights: above 0, how much each counts for; ``None`` if each counts as one.
        parts: in how many parts they were judged, each by something fitted to the other parts (cross-validation). The
            groups of a part then depend on one another too, so Student's distribution has one degree of freedom less
            than there are parts. ``None`` if all were judged by the same.
    """
    if not right:
        return None
    sums = _sums(right, groups, weights or [1.0] * len(right))
    if len(sums) < 2:
        return 0.0, 1.0
    count = sum(n for _, n in sums)
    share, variance = _mean(sums)
    independent = share * (1 - share) / count
    number = count * min(1.0, independent / variance) if variance > 0 else count
    freedom = min(len(sums), parts or len(sums)) - 1
    number *= (NORMAL_95 / student_95(max(1, freedom))) ** 2
    return wilson(share * number, number)


def wilson(right: float, count: float) -> tuple[float, float] | None:
    """The 95 % interval of a share of independent values by Wilson (1927); ``None`` without values."""
    if not count:
        return None
    z2, share = NORMAL_95**2, right / count
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = (z2 * (share * (1 - share) / count + z2 / (4 * count**2))) ** 0.5 / (1 + z2 / count)
    # rounding must not leave the share itself outside
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))
