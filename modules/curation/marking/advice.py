"""What to do next, from how much was marked and how well a head knows the taste."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

FEWEST_LIKES = 5
FEWEST_SEEN = 25
"""A head is not measured before: it would be about a handful of prompts."""
ANOTHER = 30
GUESSING, GOOD = 0.5, 0.75
"""A head is better than guessing, or good, once the lower end of its interval is above these."""


class Next(Enum):
    """What a person should do next."""

    BOTH = "both"
    """Nothing can be compared: everything is liked, or nothing."""
    MORE = "more"
    FIRST = "first"
    """Enough for a first training."""
    ENOUGH = "enough"


@dataclass(frozen=True)
class Known:
    """How well a head knows a taste.

    Args:
        share: of comparisons about prompts it did not learn from that it gets right.
        low, high: 95 % interval of it.
    """

    share: float
    low: float
    high: float


def can_measure(liked: int, seen: int) -> bool:
    """Whether there is enough to measure.

    Args:
        liked, seen: images; ``seen`` counts those with a mark too.
    """
    return liked >= FEWEST_LIKES and seen - liked >= FEWEST_LIKES and seen >= FEWEST_SEEN


def what_next(liked: int, seen: int, known: Known | None) -> tuple[Next, int]:
    """What to do, and how many more images to look at."""
    if seen >= FEWEST_SEEN and not can_measure(liked, seen):
        return Next.BOTH, 0
    if known is None or known.low <= GUESSING:
        return Next.MORE, max(ANOTHER, FEWEST_SEEN - seen)
    return (Next.ENOUGH if known.low >= GOOD else Next.FIRST), 0
