"""Advice on what to do next, from the number of marks and how well a head knows the taste."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

FEWEST_LIKES = 5
FEWEST_SEEN = 25
"""A head is not measured below this number, because the result would rest on a handful of prompts."""
ANOTHER = 30
GUESSING, GOOD = 0.5, 0.75
"""A head is better than guessing, or good, if the lower end of its interval exceeds these."""


class Next(Enum):
    """Advice on what to do next."""

    BOTH = "both"
    """Nothing can be compared, because everything or nothing is liked."""
    MORE = "more"
    FIRST = "first"
    """Enough for a first training run."""
    ENOUGH = "enough"


@dataclass(frozen=True)
class Known:
    """The accuracy with which a head knows a taste.

    Args:
        share: accuracy on comparisons of held-out prompts.
        low, high: 95 % interval of the share.
    """

    share: float
    low: float
    high: float


def can_measure(liked: int, seen: int) -> bool:
    """Return whether there are enough marks to measure.

    Args:
        liked, seen: numbers of images; ``seen`` includes those with a mark.
    """
    return liked >= FEWEST_LIKES and seen - liked >= FEWEST_LIKES and seen >= FEWEST_SEEN


def what_next(liked: int, seen: int, known: Known | None) -> tuple[Next, int]:
    """Return what to do, and how many more images to look at."""
    if seen >= FEWEST_SEEN and not can_measure(liked, seen):
        return Next.BOTH, 0
    if known is None or known.low <= GUESSING:
        return Next.MORE, max(ANOTHER, FEWEST_SEEN - seen)
    return (Next.ENOUGH if known.low >= GOOD else Next.FIRST), 0
