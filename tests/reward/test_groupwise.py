from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.reward.base import RewardError
from modules.reward.groupwise import GroupwiseReward, PairwiseReward, bradley_terry, win_rate
from modules.util.errors import ConfigError
from tests.reward.builders import batch_of


def flat_images(levels):
    return torch.tensor(levels).view(-1, 1, 1, 1).expand(-1, 3, 4, 4).contiguous()


class Brighter(PairwiseReward):
    """sigmoid of the difference in brightness, plus a liking for whatever comes first."""

    def __init__(self, bias=0.0, method="win_rate"):
        super().__init__()
        self.bias, self.method, self.asked = bias, method, 0

    def _compare(self, prompts, first_PCHW, second_PCHW, metadata):
        self.asked += len(prompts)
        assert len(prompts) == len(first_PCHW) == len(second_PCHW) == len(metadata)
        difference = first_PCHW.mean(dim=(1, 2, 3)) - second_PCHW.mean(dim=(1, 2, 3))
        return (torch.sigmoid(difference) + self.bias).clamp(0, 1)


class Answer(Brighter):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def _compare(self, prompts, first_PCHW, second_PCHW, metadata):
        return self.answer(len(prompts))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_a_group_plays_everyone_against_everyone():
    levels = [0.2, 0.9, 0.5]
    reward = Brighter()
    found = reward.score(batch_of(flat_images(levels), [0, 0, 0]))
    expected = [sum(sigmoid(a - b) for j, b in enumerate(levels) if j != i) / 2 for i, a in enumerate(levels)]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    assert reward.asked == 6
    assert reward.kind == "pairwise"


def test_a_liking_for_the_first_place_cancels_out():
    images = batch_of(flat_images([0.2, 0.9, 0.5, 0.6]), [0, 0, 1, 1])
    assert torch.allclose(Brighter(0.2).score(images), Brighter().score(images), atol=1e-6)


def test_groups_in_mixed_order_are_kept_apart():
    levels = [0.2, 0.5, 0.9, 0.6]
    mixed = Brighter().score(batch_of(flat_images(levels), [4, 3, 4, 3]))
    first = Brighter().score(batch_of(flat_images([0.2, 0.9]), [4, 4]))
    second = Brighter().score(batch_of(flat_images([0.5, 0.6]), [3, 3]))
    assert mixed.tolist() == [first[0], second[0], first[1], second[1]]


def test_fitted_strengths_have_the_differences_that_made_the_chances():
    levels = [0.1, 0.9, 0.5, 0.3]
    found = Brighter(method="bradley_terry").score(batch_of(flat_images(levels), [0] * 4))
    middle = sum(levels) / 4
    assert found.tolist() == pytest.approx([one - middle for one in levels], abs=0.01)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=7))
def test_bradley_terry_gives_strengths_back(strengths):
    s = torch.tensor(strengths, dtype=torch.float64)
    found = bradley_terry(torch.sigmoid(s[:, None] - s[None, :]), ridge=1e-8)
    assert torch.allclose(found, s - s.mean(), atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(0, 10_000), st.booleans())
def test_bradley_terry_always_finds_an_end(count, seed, certain):
    chance = torch.rand(count, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    chance = chance.round() if certain else chance
    upper = chance.triu(1)
    whole = upper + (1 - upper).T.tril(-1)
    found = bradley_terry(whole)
    assert torch.isfinite(found).all() and abs(found.sum()) < 1e-9
    rates = win_rate(whole)
    best, worst = int(rates.argmax()), int(rates.argmin())
    assert found[best] >= found[worst] - 1e-9


def test_win_rate_does_not_read_the_diagonal():
    chance = torch.tensor([[99.0, 0.25], [0.75, 99.0]])
    assert win_rate(chance).tolist() == [0.25, 0.75]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda n: torch.full((n,), 1.5), "outside"),
        (lambda n: torch.full((n,), float("nan")), "outside"),
        (lambda n: torch.zeros(n - 1), "1,.*2 comparisons"),
    ],
)
def test_bad_comparisons_are_refused(answer, words):
    with pytest.raises(RewardError, match=words):
        Answer(answer).score(batch_of(flat_images([0.2, 0.9]), [0, 0]))


@pytest.mark.parametrize(
    ("groups", "more", "words"),
    [
        ([0, 0, 1], {}, "group 1 has 1"),
        ([0, 0, 0], {"group_size": 4}, "3 of 4"),
        ([0, 0, 0], {"prompts": ["a", "a", "b"]}, "different prompts"),
    ],
)
def test_groups_must_be_whole(groups, more, words):
    with pytest.raises(ConfigError, match=words):
        Brighter().score(batch_of(flat_images([0.2, 0.9, 0.3]), groups, **more))


def test_a_groupwise_reward_must_answer_for_every_image():
    class Short(GroupwiseReward):
        def _score_group(self, prompt, images_KCHW, metadata):
            return torch.zeros(1)

    with pytest.raises(RewardError, match="group of 2"):
        Short().score(batch_of(flat_images([0.2, 0.9]), [0, 0]))
