"""A simulated person that measures how many clicks each way of choosing needs.

Qualities of a group are drawn from a normal distribution. The person answers with Bradley-Terry odds,
sometimes calls similar images a tie, and sometimes clicks without looking. The result is the quality gap
between the images the method would export as chosen and rejected, as a share of the largest gap in the group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from modules.curation.choosing.base import DEFAULT_THRESHOLD, AnswerKind
from modules.curation.CurationMode import CurationMode
from modules.curation.ranking import Floats
from modules.curation.standing import Answer, Situation, ranked_pairs
from modules.util.rng import python_random

MOST_CLICKS = 400


@dataclass(frozen=True)
class Annotator:
    """The answers of the simulated person.

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


Chooser = Callable[[Situation, Random], tuple[int, ...]]
"""Chooses the next question: a way of choosing, or a baseline."""


def closest_rating(situation: Situation, rng: Random) -> tuple[int, ...]:
    """A baseline that pairs similar ratings: a random one of the pairs with the smallest difference in
    rating, excluding the last pair asked.
    """
    images, answers = sorted(situation.alive), situation.answers
    rating = situation.standing.ratings[images]
    apart = np.abs(rating[:, None] - rating[None, :])
    np.fill_diagonal(apart, np.inf)
    if answers and len(images) > 2:
        last = [images.index(i) for i in answers[-1].places if i in images]
        apart[np.ix_(last, last)] = np.inf
    nearest = np.argwhere(apart == apart.min())
    first, second = nearest[rng.randrange(len(nearest))]
    return images[first], images[second]


def gap_curve(
    mode: CurationMode,
    images: int,
    clicks: int,
    seed: int,
    annotator: Annotator,
    pairs: int = 1,
    choose: Chooser | None = None,
) -> list[float]:
    """Share of the largest possible quality gap after 1..``clicks`` clicks, for one group.

    A question of four costs two clicks (one for the best, one for the worst).

    Raises:
        ValueError: ``mode`` asks about one image at a time, so that there are no comparisons.
    """
    if mode.way.kind in (AnswerKind.JUDGE, AnswerKind.MARK):
        raise ValueError(f"{mode} asks for no comparisons, which are what is simulated")
    rng = np.random.default_rng(seed)
    quality = rng.normal(size=images) * annotator.spread
    ideal_order = [int(i) for i in np.argsort(-quality)]
    ideal = sum(quality[a] - quality[b] for a, b in ranked_pairs(ideal_order, pairs))
    way, alive = mode.way, tuple(range(images))
    ask = choose or way.question
    answers: list[Answer] = []
    curve: list[float] = []
    state = way.standing(images, answers, fit=way.needs_fit)
    value = 0.0
    while len(curve) < clicks:
        situation = Situation(state, alive, answers, wanted=pairs)
        places = ask(situation, python_random("simulation", seed, len(answers)))
        curve += [value] * (1 if len(places) == 4 else 0)
        answers.append(annotator.answer(quality, places, rng.random(2 + len(places)).tolist()))
        state = way.standing(images, answers, fit=way.needs_fit)
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
    pairs: int = 1,
    choose: Chooser | None = None,
) -> int | None:
    """Clicks until the mean share over many groups reaches ``share``; ``None`` if ``limit`` is too low."""
    person = Annotator()
    mean = np.mean([gap_curve(mode, images, limit, seed, person, pairs, choose) for seed in seeds], axis=0)
    reached = np.flatnonzero(mean >= share)
    return int(reached[0]) + 1 if len(reached) else None


@dataclass(frozen=True)
class Stopped:
    """Means over many groups at the moment asking stopped automatically.

    ``share`` is relative to the largest possible quality gap; ``ordered`` is how often the chosen image
    really was better.
    """

    clicks: float
    share: float
    ordered: float


def stop_by_itself(mode: CurationMode, images: int, seeds: Iterable[int]) -> Stopped:
    """Run a way that saves automatically until it stops, with one pair per group: the pair it would save.

    Raises:
        ValueError: ``mode`` does not stop automatically.
    """
    if not mode.way.stops_when_certain:
        raise ValueError(f"{mode} does not stop by itself")
    ends = [_stop(mode, images, seed, Annotator()) for seed in seeds]
    clicks, share, ordered = np.mean(ends, axis=0)
    return Stopped(float(clicks), float(share), float(ordered))


def _stop(mode: CurationMode, images: int, seed: int, person: Annotator) -> tuple[float, float, float]:
    """Clicks, share of the gap, and whether the order is correct, for one group."""
    way, alive = mode.way, tuple(range(images))
    rng = np.random.default_rng(seed)
    quality = rng.normal(size=images) * person.spread
    answers: list[Answer] = []
    situation = Situation(way.standing(images, answers), alive, answers)
    clicks = 0
    while clicks < MOST_CLICKS and way.settle(situation, DEFAULT_THRESHOLD, lambda a, b: 0.0) is None:
        places = way.question(situation, python_random("simulation", seed, len(answers)))
        answers.append(person.answer(quality, places, rng.random(2 + len(places)).tolist()))
        clicks += len(places) // 2
        situation = Situation(way.standing(images, answers), alive, answers)
    order = situation.standing.order(alive)
    gap = float(quality[order[0]] - quality[order[-1]])
    return clicks, gap / float(np.ptp(quality)), float(gap > 0)
