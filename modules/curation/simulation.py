"""A simulated person, to measure how many clicks each way of choosing needs.

Qualities of a group are drawn from a normal distribution; the person answers by Bradley-Terry odds,
sometimes calls near-equal images a tie, and sometimes clicks without looking. What is measured is the
quality gap between the image the method would export as chosen and the one it would export as rejected, as
a share of the largest gap in the group.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import numpy as np

from modules.curation.choosing import (
    DEFAULT_THRESHOLD,
    Answer,
    Standing,
    all_comparisons,
    ask,
    is_settled,
    ranked_pairs,
    standing,
)
from modules.curation.ranking import Floats, bradley_terry, elo_ratings
from modules.util.enum.CurationMode import CurationMode
from modules.util.rng import python_random


@dataclass(frozen=True)
class Annotator:
    """How the simulated person answers.

    Args:
        spread: standard deviation of quality within a group, in logits. 2.65 with the other defaults makes
            83 % of the answers that are not ties agree with the quality.
        careless: share of answers given at random.
        tie: probability of calling two equal images a tie; falls off as exp(-|difference|).
    """

    spread: float = 2.65
    careless: float = 0.1
    tie: float = 0.08

    def answer(self, quality: Floats, places: tuple[int, ...], random: Sequence[float]) -> Answer:
        """Answer one question; ``random`` are numbers in [0, 1), at least two per image shown."""
        if random[0] < self.careless:
            order = sorted(places, key=lambda i: random[1 + places.index(i)])
        else:
            if len(places) == 2:
                gap = abs(quality[places[0]] - quality[places[1]])
                if random[1] < self.tie * math.exp(-gap):
                    return Answer(places, tie=True)
            # Adding Gumbel noise to the qualities and sorting gives Bradley-Terry odds between any two.
            noise = [-math.log(-math.log(max(u, 1e-12))) for u in random[2 : 2 + len(places)]]
            order = sorted(places, key=lambda i: -(quality[i] + noise[places.index(i)]))
        return Answer(places, order[0], order[-1])

    def agreement(self, draws: int = 20000, seed: int = 0) -> float:
        """Share of non-tie answers between two random images that agree with their quality."""
        rng = np.random.default_rng(seed)
        right = answered = 0
        for _ in range(draws):
            quality = rng.normal(size=2) * self.spread
            answer = self.answer(quality, (0, 1), rng.random(6).tolist())
            if answer.best is not None:
                answered += 1
                right += answer.best == int(np.argmax(quality))
        return right / answered


class Chooser(Protocol):
    """What picks the next question; ``choosing.ask`` or something to compare it with."""

    def __call__(
        self,
        mode: CurationMode,
        state: Standing,
        alive: Collection[int],
        answers: Sequence[Answer],
        rng: Random,
        pairs_wanted: int = 1,
    ) -> tuple[int, ...]: ...


def closest_rating(
    mode: CurationMode,
    state: Standing,
    alive: Collection[int],
    answers: Sequence[Answer],
    rng: Random,
    pairs_wanted: int = 1,
) -> tuple[int, ...]:
    """Plain similar-rating pairing, to compare with: of all pairs one with the least difference in rating, drawn
    at random, but not the pair asked last."""
    images = sorted(alive)
    rating = state.ratings[images]
    apart = np.abs(rating[:, None] - rating[None, :])
    np.fill_diagonal(apart, np.inf)
    if answers and len(images) > 2:
        last = [images.index(i) for i in answers[-1].places if i in alive]
        apart[np.ix_(last, last)] = np.inf
    nearest = np.argwhere(apart == apart.min())
    first, second = nearest[rng.randrange(len(nearest))]
    return images[first], images[second]


def _stand(mode: CurationMode, images: int, answers: Sequence[Answer]) -> Standing:
    """``standing``; for Elo without the fit, which its questions do not use."""
    if mode is not CurationMode.ELO:
        return standing(mode, images, answers)
    shown = Counter(image for answer in answers for image in answer.places)
    return Standing(
        elo_ratings(images, all_comparisons(answers)),
        bradley_terry(images, []),
        tuple(shown[image] for image in range(images)),
    )


def gap_curve(
    mode: CurationMode,
    images: int,
    clicks: int,
    seed: int,
    annotator: Annotator,
    pairs: int = 1,
    choose: Chooser = ask,
) -> list[float]:
    """Share of the largest possible quality gap after 1..``clicks`` clicks, for one group.

    A question of four costs two clicks (one for the best, one for the worst).
    """
    rng = np.random.default_rng(seed)
    quality = rng.normal(size=images) * annotator.spread
    ideal_order = [int(i) for i in np.argsort(-quality)]
    ideal = sum(quality[a] - quality[b] for a, b in ranked_pairs(ideal_order, pairs))
    answers: list[Answer] = []
    curve: list[float] = []
    state = _stand(mode, images, answers)
    value = 0.0
    alive = range(images)
    while len(curve) < clicks:
        places = choose(mode, state, alive, answers, python_random("simulation", seed, len(answers)), pairs)
        curve += [value] * (1 if len(places) == 4 else 0)
        answers.append(annotator.answer(quality, places, rng.random(2 + len(places)).tolist()))
        state = _stand(mode, images, answers)
        made = ranked_pairs(state.order(alive), pairs)
        value = float(sum(quality[a] - quality[b] for a, b in made) / ideal)
        curve.append(value)
    return curve[:clicks]


def clicks_to_reach(
    share: float,
    mode: CurationMode,
    images: int,
    limit: int,
    seeds: Iterable[int],
    annotator: Annotator | None = None,
    pairs: int = 1,
    choose: Chooser = ask,
) -> int | None:
    """Clicks after which the mean share over many groups reaches ``share``; ``None`` when ``limit`` is too
    few."""
    person = annotator or Annotator()
    mean = np.mean([gap_curve(mode, images, limit, seed, person, pairs, choose) for seed in seeds], axis=0)
    reached = np.flatnonzero(mean >= share)
    return int(reached[0]) + 1 if len(reached) else None


@dataclass(frozen=True)
class Stopped:
    """Means over many groups at the moment asking stopped by itself.

    ``share`` is of the largest possible quality gap; ``ordered`` how often the chosen image really was better.
    """

    clicks: float
    share: float
    ordered: float


def stop_by_itself(
    mode: CurationMode,
    images: int,
    seeds: Iterable[int],
    annotator: Annotator | None = None,
    threshold: float = DEFAULT_THRESHOLD,
    limit: int = 400,
) -> Stopped:
    """Where SMART or FOUR-UP stop by themselves, with one pair per group."""
    person = annotator or Annotator()
    ends: list[tuple[float, float, float]] = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        quality = rng.normal(size=images) * person.spread
        answers: list[Answer] = []
        state = standing(mode, images, answers)
        clicks = 0
        while clicks < limit and not is_settled(state, range(images), threshold):
            random = python_random("simulation", seed, len(answers))
            places = ask(mode, state, range(images), answers, random)
            answers.append(person.answer(quality, places, rng.random(2 + len(places)).tolist()))
            clicks += len(places) // 2
            state = standing(mode, images, answers)
        order = state.order(range(images))
        gap = float(quality[order[0]] - quality[order[-1]])
        ends.append((clicks, gap / float(np.ptp(quality)), gap > 0))
    clicks_mean, share, ordered = np.mean(ends, axis=0)
    return Stopped(float(clicks_mean), float(share), float(ordered))
