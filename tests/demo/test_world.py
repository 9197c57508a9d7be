"""The drawn world, its judge and its person."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.util.errors import DataError, UserError
from modules.util.rng import python_random
from scripts.demo.judge import fidelity, matches, read_image
from scripts.demo.taste import TASTES, Person, get_taste
from scripts.demo.world import (
    BACKGROUNDS,
    COLOURS,
    SHAPES,
    SIZE,
    Scene,
    Wish,
    combinations,
    draw_scene,
    draw_wish,
    make_example,
    render,
)


@given(st.integers(0, 10_000), st.booleans())
def test_captions_say_what_the_wish_says(seed: int, held_out: bool) -> None:
    wish = draw_wish(python_random("test", seed), held_out)
    assert Wish.parse(wish.caption()) == wish


@pytest.mark.parametrize(
    "text", ["", "a red circle", "a red circle on a red background, x", "A pink circle on a red b"]
)
def test_other_sentences_are_refused(text: str) -> None:
    with pytest.raises(DataError):
        Wish.parse(text)


def test_the_split_keeps_combinations_apart_and_every_word_in_training() -> None:
    train, held_out = combinations(held_out=False), combinations(held_out=True)
    assert not set(train) & set(held_out)
    assert len(train) + len(held_out) == len(SHAPES) * len(COLOURS) * (len(BACKGROUNDS) - 1)
    assert len(held_out) >= 20
    for wishes in (train, held_out):
        assert {w.shape for w in wishes} == set(SHAPES)
        assert {w.colour for w in wishes} == set(COLOURS)
    assert {w.background for w in train} == set(BACKGROUNDS)


def test_the_judge_is_right_about_drawn_images() -> None:
    made = [make_example(5, i) for i in range(400)]
    readings = [read_image(pixels) for pixels, _ in made]
    scores = fidelity(readings, [scene.wish for _, scene in made])
    assert min(scores.values()) >= 0.99
    for reading, (_, scene) in zip(readings, made, strict=True):
        assert abs(reading.size * SIZE / 2 - scene.radius) < 1.5
        assert abs(reading.x * SIZE - scene.x) < 1.5 and abs(reading.y * SIZE - scene.y) < 1.5
        assert abs(reading.brightness - scene.brightness) < 0.02


def test_the_judge_notices_what_is_not_there() -> None:
    wish = Wish("circle", "red", "blue")
    scene = draw_scene(wish, python_random("test", 1))
    for other in (
        Wish("square", "red", "blue"),
        Wish("circle", "green", "blue"),
        Wish("circle", "red", "white"),
    ):
        assert not all(matches(read_image(render(scene)), other).values())
    empty = np.full((SIZE, SIZE, 3), 200, dtype=np.uint8)
    assert read_image(empty).shape is None
    with pytest.raises(ValueError, match="64x64"):
        read_image(np.zeros((32, 32, 3), dtype=np.uint8))


def test_examples_repeat_and_differ() -> None:
    assert np.array_equal(make_example(1, 7)[0], make_example(1, 7)[0])
    assert not np.array_equal(make_example(1, 7)[0], make_example(2, 7)[0])


def test_a_taste_never_likes_the_wrong_thing_more() -> None:
    wish = Wish("circle", "red", "blue")
    small = Scene(wish, 12.0, 32.0, 32.0, 0.7)
    big = Scene(wish, 24.0, 32.0, 32.0, 0.7)
    wrong = Scene(Wish("square", "red", "blue"), 24.0, 32.0, 32.0, 0.7)
    large = TASTES["large"]
    low, high, off = (large.score(read_image(render(scene)), wish) for scene in (small, big, wrong))
    assert high > low > off
    with pytest.raises(UserError, match="large"):
        get_taste("sour")


def test_a_person_slips_as_often_as_told_and_answers_the_same_question_the_same() -> None:
    person = Person(TASTES["large"], seed=3, error_rate=0.1)
    answers = [person.prefer(0.9, 0.1, "question", i) for i in range(3000)]
    assert 0.07 < np.mean(answers) < 0.13
    assert answers == [person.prefer(0.9, 0.1, "question", i) for i in range(3000)]
    assert person.prefer(0.5, 0.51, 1) is None
    with pytest.raises(UserError):
        Person(TASTES["large"], 1, 0.5)
