"""Which images to show next, and what the answers so far say: pure functions over one group of images.

Images are indices 0..N-1 of the group. Nothing here draws, reads files or keeps state; the caller hands
over the answers and a ``random.Random`` and gets the next question.

Best-worst questions follow Louviere et al. 2015 (Best-Worst Scaling); the next pair is the one with the
largest expected improvement (Mockus 1975; Jones et al. 1998) over the leader at either end of the ranking.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from modules.curation.ranking import (
    ELO_START,
    Comparison,
    Floats,
    Posterior,
    bradley_terry,
    elo_ratings,
)
from modules.util.enum.CurationMode import CurationMode

DEFAULT_THRESHOLD = 0.95
DEFAULT_SHARE = 0.8
"""Expected share of the possible quality gap that a pair needs, too, before asking stops."""


@dataclass(frozen=True)
class Answer:
    """One answer of the person.

    Args:
        places: the images shown, left to right, top to bottom.
        best: the preferred image; ``None`` for a tie, both bad, a skip.
        worst: the rejected image; in a question of two, the other one.
        tie: judged equal. Both-bad counts as equal in the ranking and is kept apart for later exports.
        both_bad: judged equal and poor.
    """

    places: tuple[int, ...]
    best: int | None = None
    worst: int | None = None
    tie: bool = False
    both_bad: bool = False

    def __post_init__(self) -> None:
        for image in (self.best, self.worst):
            if image is not None and image not in self.places:
                raise ValueError(f"image {image} was not shown in {self.places}")
        if self.best is not None and self.best == self.worst:
            raise ValueError("best and worst must differ")

    @property
    def skipped(self) -> bool:
        """No information: shown and passed over."""
        return self.best is None and self.worst is None and not self.tie and not self.both_bad

    def comparisons(self) -> list[Comparison]:
        """The pairwise comparisons this answer contains, each unordered pair at most once."""
        if self.tie or self.both_bad:
            shown = self.places
            return [Comparison(a, b, 0.5) for i, a in enumerate(shown) for b in shown[i + 1 :]]
        made = []
        if self.best is not None:
            made += [Comparison(self.best, other, 1.0) for other in self.places if other != self.best]
        if self.worst is not None:
            made += [
                Comparison(other, self.worst, 1.0)
                for other in self.places
                if other not in (self.best, self.worst)
            ]
        return made


def all_comparisons(answers: Sequence[Answer]) -> list[Comparison]:
    """Every comparison of every answer, in order."""
    return [c for answer in answers for c in answer.comparisons()]


@dataclass(frozen=True)
class Standing:
    """The ranking of one group after some answers.

    ``ratings`` (N,) are on the Elo scale whatever the mode (a logit is 400/ln 10 points), for display and
    sorting; ``posterior`` is the Bradley-Terry fit, which also says how certain an order is.
    """

    ratings: Floats
    posterior: Posterior
    shown: tuple[int, ...]

    def order(self, alive: Collection[int]) -> list[int]:
        """The images of ``alive`` from best to worst."""
        return sorted(alive, key=lambda i: (-self.ratings[i], i))

    def certainty(self, alive: Collection[int]) -> float:
        """Posterior probability that the best of ``alive`` really is better than the worst of them."""
        order = self.order(alive)
        return self.posterior.probability_ordered(order[0], order[-1]) if len(order) > 1 else 0.0

    def expected_share(self, alive: Collection[int]) -> float:
        """Expected quality gap between the best and the worst of ``alive`` as they stand, as a share of the
        largest gap that is there, whichever images it lies between."""
        order = self.order(alive)
        gap = float(self.posterior.mean[order[0]] - self.posterior.mean[order[-1]])
        return gap / self.posterior.expected_spread(order)


def standing(mode: CurationMode, count: int, answers: Sequence[Answer]) -> Standing:
    """Ratings and posterior of ``count`` images after ``answers``."""
    comparisons = all_comparisons(answers)
    posterior = bradley_terry(count, comparisons)
    if mode is CurationMode.ELO:
        ratings = elo_ratings(count, comparisons)
    else:
        ratings = ELO_START + posterior.mean * (400.0 / np.log(10.0))
    shown = [0] * count
    for answer in answers:
        for image in answer.places:
            shown[image] += 1
    return Standing(ratings, posterior, tuple(shown))


def ask(
    mode: CurationMode,
    state: Standing,
    alive: Collection[int],
    answers: Sequence[Answer],
    rng: random.Random,
    pairs_wanted: int = 1,
) -> tuple[int, ...]:
    """The images of the next question, in screen order; ``()`` when fewer than two are alive.

    Places are random, so that a habit of preferring one side can be measured and does not favour an image.
    """
    images = sorted(alive)
    if len(images) < 2:
        return ()
    if mode is CurationMode.ELO:
        chosen = _similar_rating(state, images, answers, rng)
    elif mode is CurationMode.SMART or (mode is CurationMode.FOUR_UP and len(images) < 4):
        chosen = _decisive_pair(state, images, answers, rng, pairs_wanted)
    elif mode is CurationMode.FOUR_UP:
        chosen = _contenders(state, images, answers, rng)
    else:
        raise ValueError(f"{mode} has no questions to choose")
    rng.shuffle(chosen)
    return tuple(chosen)


def _similar_rating(
    state: Standing, images: list[int], answers: Sequence[Answer], rng: random.Random
) -> list[int]:
    """The image shown least, and the one nearest to it in rating that it did not meet last."""
    first = min(images, key=lambda i: (state.shown[i], rng.random()))
    met = next((set(a.places) for a in reversed(answers) if first in a.places), set())
    others = [i for i in images if i != first]
    fresh = [i for i in others if i not in met] or others
    second = min(fresh, key=lambda i: (abs(state.ratings[i] - state.ratings[first]), rng.random()))
    return [first, second]


def _decisive_pair(
    state: Standing, images: list[int], answers: Sequence[Answer], rng: random.Random, pairs_wanted: int
) -> list[int]:
    """Two images not seen yet; later the pair across the boundary of the kept (or the dropped) images with the
    largest expected gain.

    Pairing what is unseen first needs half a question an image and helps at both ends: the winner may be the
    best, the loser the worst (3N/2 - 2 questions would do if answers were never wrong; Pohl 1972). With one
    pair wanted the rest are leader and challenger for best, and the same at the worst end.
    """
    unseen = [i for i in images if not state.shown[i]]
    if len(unseen) > 1:
        return rng.sample(unseen, 2)
    keep = max(1, min(pairs_wanted, len(images) // 2))
    skipped = set(answers[-1].places) if answers and answers[-1].skipped and len(images) > 2 else set()
    candidates = []
    for sign in (1.0, -1.0):
        order = sorted(images, key=lambda i: (-sign * state.posterior.mean[i], rng.random()))
        for inside in order[:keep]:
            for outside in order[keep:]:
                if skipped != {inside, outside}:
                    gain = _expected_gain(state.posterior, sign, inside, outside)
                    candidates.append((gain, rng.random(), inside, outside))
    _, _, inside, outside = max(candidates)
    return [inside, outside]


def _expected_gain(posterior: Posterior, sign: float, inside: int, outside: int) -> float:
    """Expected improvement, in logits, of letting ``outside`` take the place of ``inside``."""
    std = posterior.difference_std(inside, outside)
    gap = sign * float(posterior.mean[outside] - posterior.mean[inside])
    z = gap / std
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return std * density + gap * 0.5 * (1.0 + math.erf(z / math.sqrt(2.0)))


def _contenders(
    state: Standing, images: list[int], answers: Sequence[Answer], rng: random.Random
) -> list[int]:
    """Four images not seen yet; later leader and best challenger for best, and the same for worst."""
    unseen = [i for i in images if not state.shown[i]]
    if len(unseen) > 3:
        return rng.sample(unseen, 4)
    skipped = set(answers[-1].places) if answers and answers[-1].skipped and len(images) > 4 else set()
    mean = state.posterior.mean
    chosen: list[int] = []
    for sign in (1.0, -1.0):
        left = [i for i in images if i not in chosen]
        leader = max(left, key=lambda i: (sign * mean[i], rng.random()))
        left.remove(leader)
        left.sort(key=lambda i: (-_expected_gain(state.posterior, sign, leader, i), rng.random()))
        again = {*chosen, leader, left[0]} == skipped
        chosen += [leader, left[1] if again else left[0]]
    return chosen


def is_settled(state: Standing, alive: Collection[int], threshold: float = DEFAULT_THRESHOLD) -> bool:
    """Whether asking can stop: all were shown, best over worst is certain enough, and not much more is to be
    had by finding a better best or a worse worst.

    The second bar is ``DEFAULT_SHARE`` of the possible gap at the default threshold, and moves with it.
    """
    if len(alive) < 2 or not all(state.shown[i] for i in alive) or state.certainty(alive) < threshold:
        return False
    return state.expected_share(alive) >= DEFAULT_SHARE * (threshold - 0.5) / (DEFAULT_THRESHOLD - 0.5)


def ranked_pairs(order: Sequence[int], count: int) -> list[tuple[int, int]]:
    """``count`` pairs (chosen, rejected) from a ranking: best with worst, second best with second worst,
    ..."""
    return [(order[i], order[-1 - i]) for i in range(min(count, len(order) // 2))]


def pools_to_pairs(
    good: Sequence[int], bad: Sequence[int], distance: Callable[[int, int], float], count: int | None = None
) -> list[tuple[int, int]]:
    """Pair good images with bad ones, the most alike first, so that pairs differ in quality and little else.

    Args:
        distance: visual distance of two images (Hamming distance of their hashes).
        count: at most so many pairs; ``None`` for as many as there are.
    """
    edges = sorted((distance(g, b), g, b) for g in good for b in bad)
    used: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for _, g, b in edges:
        if count is not None and len(pairs) >= count:
            break
        if g not in used and b not in used:
            used |= {g, b}
            pairs.append((g, b))
    return pairs
