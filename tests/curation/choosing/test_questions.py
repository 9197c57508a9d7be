"""Which images are shown next and when asking stops: rules, and what they are worth in simulation."""

from __future__ import annotations

import random

import numpy as np
import pytest

from modules.curation.choosing.base import is_settled
from modules.curation.CurationMode import CurationMode
from modules.curation.simulation import Annotator, clicks_to_reach, closest_rating, stop_by_itself
from modules.curation.standing import Answer, Situation, Standing

SMART, ELO, FOUR_UP = CurationMode.SMART, CurationMode.ELO, CurationMode.FOUR_UP
ALL = [SMART, ELO, FOUR_UP]


def standing(mode: CurationMode, count: int, answers: list[Answer]) -> Standing:
    return mode.way.standing(count, answers)


def ask(mode: CurationMode, count: int, answers: list[Answer], seed: int) -> tuple[int, ...]:
    situation = Situation(standing(mode, count, answers), tuple(range(count)), answers)
    return mode.way.question(situation, random.Random(seed))


def play(mode: CurationMode, count: int, questions: int, prefer=max) -> tuple[list[Answer], Standing]:
    """A person who always prefers the higher index (or the lower one)."""
    answers: list[Answer] = []
    state = standing(mode, count, answers)
    for step in range(questions):
        places = ask(mode, count, answers, step)
        worst = min(places) if prefer is max else max(places)
        answers.append(Answer(places, prefer(places), worst))
        state = standing(mode, count, answers)
    return answers, state


@pytest.mark.parametrize(("mode", "needed"), [(SMART, 8), (FOUR_UP, 4), (ELO, 8)])
def test_every_image_is_seen_before_any_is_seen_twice(mode, needed):
    _, state = play(mode, 16, needed)
    assert state.shown == (1,) * 16


@pytest.mark.parametrize("mode", ALL)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
def test_small_groups(mode, count):
    places = ask(mode, count, [], 1)
    assert len(places) == (0 if count < 2 else 4 if mode is FOUR_UP and count > 3 else 2)
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("mode", ALL)
def test_a_skipped_question_does_not_come_again_at_once(mode):
    answers, _ = play(mode, 9, 12)
    for step in range(30):
        places = ask(mode, 9, answers, step)
        answers.append(Answer(places))
        again = ask(mode, 9, answers, step)
        assert set(again) != set(places)


@pytest.mark.parametrize("mode", [SMART, FOUR_UP])
@pytest.mark.parametrize("prefer", [min, max])
def test_a_consistent_person_gets_the_best_and_the_worst(mode, prefer):
    _, state = play(mode, 8, 30, prefer)
    order = state.order(range(8))
    ends = (order[0], order[-1])
    assert ends == ((7, 0) if prefer is max else (0, 7))
    assert is_settled(state, range(8))
    assert state.expected_share(range(8)) > 0.9


def test_asking_does_not_stop_while_an_image_is_unseen_or_better_ones_may_be_found():
    answers = [Answer((0, 1), 0, 1)] * 12
    state = standing(SMART, 3, answers)
    assert state.certainty(range(3)) > 0.95
    assert not is_settled(state, range(3))
    assert is_settled(state, [0, 1])
    # Eight images seen once each: one more answer makes a pair certain, but it is hardly the best pair there is.
    seen = [Answer((i, i + 1), i, i + 1) for i in range(0, 16, 2)] + [Answer((0, 1), 0, 1)] * 6
    state = standing(SMART, 16, seen)
    assert state.certainty(range(16)) > 0.95
    assert not is_settled(state, range(16))
    assert is_settled(state, range(16), threshold=0.6)


def test_expected_share_is_a_share_and_does_not_depend_on_the_order_of_the_images():
    _, state = play(SMART, 8, 10)
    share = state.expected_share(range(8))
    assert 0.0 < share < 1.0
    assert state.expected_share([7, 2, 5, 0, 1, 3, 6, 4]) == pytest.approx(share, abs=1e-12)


def test_closest_rating_is_what_it_says():
    answers = [Answer((0, 1), 0, 1), Answer((2, 3), 2, 3), Answer((0, 2), 0, 2)]
    state = standing(ELO, 4, answers)
    for seed in range(10):
        places = closest_rating(Situation(state, (0, 1, 2, 3), answers), random.Random(seed))
        gap = abs(state.ratings[places[0]] - state.ratings[places[1]])
        others = [
            abs(state.ratings[a] - state.ratings[b]) for a, b in ((0, 1), (0, 3), (1, 2), (1, 3), (2, 3))
        ]
        assert gap == pytest.approx(min(others))


def test_the_simulated_person_is_right_as_often_as_documented():
    person, rng = Annotator(), np.random.default_rng(0)
    right = []
    for _ in range(4000):
        quality = rng.normal(size=2) * person.spread
        answer = person.answer(quality, (0, 1), rng.random(6).tolist())
        if answer.best is not None:
            right.append(answer.best == int(np.argmax(quality)))
    assert np.mean(right) == pytest.approx(0.83, abs=0.02)


@pytest.mark.slow
def test_clicks_at_a_glance():
    """A coarse guard; the figures are the benchmark's."""
    smart = clicks_to_reach(0.85, SMART, 12, 30, range(40))
    assert smart is not None
    assert smart <= 20
    assert clicks_to_reach(0.85, FOUR_UP, 12, 30, range(40)) is not None
    assert clicks_to_reach(0.85, ELO, 12, 24, range(40), choose=closest_rating) is None
    assert clicks_to_reach(0.85, ELO, 12, 20, range(40)) is None


@pytest.mark.parametrize("mode", [SMART, FOUR_UP])
def test_where_it_stops_by_itself_the_pair_is_a_good_one(mode):
    stopped = stop_by_itself(mode, 10, range(40))
    assert stopped.ordered >= 0.95
    assert stopped.share >= 0.8
    assert stopped.clicks < 20
