"""The number of images of the base model that one would have to make, keeping the best, to equal an adapter's
mean liking.

A win rate says how often an adapter is better, not by how much. This says by how much, in images that need not be made.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np

MOST = 16
"""The largest N considered; it is also the value for an adapter beyond it."""


def expected_best(liking: Sequence[float], n: int) -> float:
    """The mean, over every choice of ``n`` different images, of the best one's liking.

    The i-th smallest of M values is the best of C(i - 1, n - 1) of the C(M, n) choices.

    Raises:
        ValueError: there are fewer than ``n`` images.
    """
    count = len(liking)
    if not 1 <= n <= count:
        raise ValueError(f"the best of {n} of {count} images")
    every = comb(count, n)
    ordered = sorted(float(one) for one in liking)
    return sum(comb(place, n - 1) / every * value for place, value in enumerate(ordered))


def best_of_curve(liking: Sequence[Sequence[float]], most: int = MOST) -> list[float]:
    """Mean liking of the best of 1, 2, ... images of one prompt, each prompt with the same weight.

    Args:
        liking: of the base model's images, a list for each prompt.
        most: the curve ends here, or where a prompt has no more images.

    Raises:
        ValueError: there is no prompt, or one without images.
    """
    if not liking or not all(liking):
        raise ValueError("every prompt needs an image of the base model")
    longest = min([most, *(len(one) for one in liking)])
    return [float(np.mean([expected_best(one, n) for one in liking])) for n in range(1, longest + 1)]


def best_of_n(liking: Sequence[Sequence[float]], reached: float, most: int = MOST) -> float:
    """The N at which the base model's curve reaches a mean liking, interpolated linearly between whole N.

    Args:
        liking: of the base model's images, a list for each prompt.
        reached: mean liking of the adapter's images of the same prompts.

    Returns:
        1 for what the base model's mean reaches, and for less; the end of the curve for what is above it.
    """
    curve = best_of_curve(liking, most)
    if reached <= curve[0]:
        return 1.0
    for place in range(1, len(curve)):
        low, high = curve[place - 1], curve[place]
        if reached <= high:
            return place + (reached - low) / (high - low)
    return float(len(curve))
