"""Advantages against plain Python, and what holds for all of them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.objective.advantages import AdvantageOptions, group_advantages
from modules.util.errors import DataError


def by_hand(rewards: list[float], groups: list[int], options: AdvantageOptions) -> list[float]:
    members: dict[int, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        members[group].append(reward)
    out = []
    for reward, group in zip(rewards, groups, strict=True):
        centred = reward - statistics.fmean(members[group])
        if len(set(members[group])) == 1:
            out.append(0.0)
            continue
        if options.scale == "none":
            out.append(centred)
            continue
        std = statistics.pstdev(members[group] if options.scale == "group" else rewards)
        out.append(centred / (std + options.eps))
    return out


def doubles(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_worked_example() -> None:
    """Group 0 has mean 2 and std 1, group 1 mean 6 and std 2; all four rewards have sqrt(6.5) as std."""
    reward, group = doubles([1, 3, 4, 8]), torch.tensor([0, 0, 1, 1])
    own = group_advantages(reward, group, AdvantageOptions(scale="group", eps=1e-9))
    assert own.adv_N.tolist() == pytest.approx([-1, 1, -1, 1], abs=1e-8)
    assert own.mean_G.tolist() == [2, 6]
    assert own.std_G.tolist() == [1, 2]
    batch = group_advantages(reward, group)
    std = math.sqrt((9 + 1 + 0 + 16) / 4) + 1e-4
    assert batch.adv_N.tolist() == pytest.approx([-1 / std, 1 / std, -2 / std, 2 / std], abs=1e-14)
    assert (batch.reward_mean, batch.reward_std) == (4.0, pytest.approx(std - 1e-4))
    none = group_advantages(reward, group, AdvantageOptions(scale="none"))
    assert none.adv_N.tolist() == [-1, 1, -2, 2]


@st.composite
def reward_tables(draw: st.DrawFn) -> tuple[list[float], list[int]]:
    size, groups = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    rewards = draw(st.lists(st.floats(-2, 2, width=32), min_size=size * groups, max_size=size * groups))
    return rewards, draw(st.permutations([g for g in range(groups) for _ in range(size)]))


@settings(max_examples=60, deadline=None)
@given(reward_tables(), st.sampled_from(["group", "batch", "none"]))
def test_every_convention_is_its_formula(table: tuple[list[float], list[int]], scale: str) -> None:
    options = AdvantageOptions(scale=scale, eps=1e-2, clip=None)
    out = group_advantages(doubles(table[0]), torch.tensor(table[1]), options)
    assert out.adv_N.tolist() == pytest.approx(by_hand(*table, options), abs=1e-9)
    for group in out.group_id_G:
        assert abs(float(out.adv_N[torch.tensor(table[1]) == group].sum())) < 1e-9


def test_one_prompt_makes_group_and_batch_the_same() -> None:
    reward, group = doubles([0.1, 0.5, 0.7]), torch.tensor([4, 4, 4])
    own, batch = (group_advantages(reward, group, AdvantageOptions(scale=s)) for s in ("group", "batch"))
    assert torch.equal(own.adv_N, batch.adv_N)


def test_equal_rewards_give_exactly_zero() -> None:
    """The mean of three 0.1 is not 0.1; a tiny epsilon would turn that rounding into an advantage."""
    reward, group = doubles([0.1, 0.1, 0.1, 0.0, 0.5, 0.3]), torch.tensor([0, 0, 0, 1, 1, 1])
    for combine in ("sum", "gdpo"):
        options = AdvantageOptions(scale="group", eps=1e-18, combine=combine)
        out = group_advantages(reward, group, options)
        assert out.adv_N[:3].tolist() == [0, 0, 0]
        assert out.zero_std_ratio == 0.5
        assert out.adv_N[3:].abs().min() > 0.1


def test_clip() -> None:
    reward, group = doubles([0.0] * 9 + [1.0]), torch.zeros(10, dtype=torch.int64)
    free = group_advantages(reward, group, AdvantageOptions(clip=None)).adv_N
    assert float(free.max()) == pytest.approx(0.9 / (0.3 + 1e-4))
    half = group_advantages(reward, group, AdvantageOptions(clip=2.0))
    assert float(half.adv_N.max()) == 2.0
    assert half.clipped_ratio == 0.1
    uneven = group_advantages(reward, group, AdvantageOptions(clip=(-0.1, 1.0))).adv_N
    assert (float(uneven.min()), float(uneven.max())) == (-0.1, 1.0)


def test_several_rewards_added_up() -> None:
    reward = doubles([[1, 2, 3, 5], [10, 0, 20, 40]])
    group = torch.tensor([0, 0, 1, 1])
    both = group_advantages(reward, group, weights=[2.0, -0.1])
    alone = group_advantages(2 * reward[0] - 0.1 * reward[1], group)
    assert both.adv_N.tolist() == pytest.approx(alone.adv_N.tolist(), abs=1e-14)


def ranks_by_hand(rewards: list[float], groups: list[int]) -> list[float]:
    """By the places that each value takes in its sorted group."""
    out = []
    for reward, group in zip(rewards, groups, strict=True):
        ordered = sorted(other for other, its in zip(rewards, groups, strict=True) if its == group)
        places = [place for place, other in enumerate(ordered) if other == reward]
        out.append(statistics.fmean(places) / (len(ordered) - 1))
    return out


@given(reward_tables(), st.sampled_from(["group", "batch", "none"]))
@settings(max_examples=50, deadline=None)
def test_ranked_advantages_are_those_of_the_ranks(table: tuple[list[float], list[int]], scale: str) -> None:
    rewards, groups = table
    options = AdvantageOptions(scale=scale, clip=None, ranked=True)  # type: ignore[arg-type]
    found = group_advantages(doubles(rewards), torch.tensor(groups), options)
    assert found.adv_N.tolist() == pytest.approx(
        by_hand(ranks_by_hand(rewards, groups), groups, options), abs=1e-12
    )
    plain = group_advantages(doubles(rewards), torch.tensor(groups))
    assert found.reward_mean == plain.reward_mean and torch.equal(found.std_G, plain.std_G)


def test_ranks_forget_all_but_the_order_of_each_reward() -> None:
    options, group_N = AdvantageOptions(scale="none", ranked=True), torch.tensor([0, 0, 0, 1, 1, 1])
    reward_RN = torch.stack([doubles([1, 9, 3, 5, 5, 5]), doubles([0, 0, 1, 3, 2, 1])])
    found = group_advantages(reward_RN, group_N, options, weights=[1.0, 2.0])
    # ranks 0, 1, 1/2 and three times 1/2; 1/4, 1/4, 1 and 1, 1/2, 0
    assert found.adv_N.tolist() == pytest.approx([-1.0, 0.0, 1.0, 1.0, 0.0, -1.0])
    again = group_advantages(reward_RN.exp(), group_N, options, weights=[1.0, 2.0])
    assert torch.equal(found.adv_N, again.adv_N)


def test_gdpo_is_free_of_scale() -> None:
    """Each reward is standardised in its group first: (-1, 1) whatever its unit, so weights mean shares."""
    reward = doubles([[1, 2, 3, 5], [1000, 0, 2000, 4000]])
    group = torch.tensor([0, 0, 1, 1])
    options = AdvantageOptions(combine="gdpo", eps=1e-12, clip=None)
    out = group_advantages(reward, group, options, weights=[1.0, 0.5])
    summed = [-0.5, 0.5, -1.5, 1.5]
    std = statistics.pstdev(summed)
    assert out.adv_N.tolist() == pytest.approx([value / std for value in summed], abs=1e-9)
    rescaled = group_advantages(reward * torch.tensor([[3.0], [1e-3]]), group, options, weights=[1.0, 0.5])
    assert rescaled.adv_N.tolist() == pytest.approx(out.adv_N.tolist(), abs=1e-6)


def test_types() -> None:
    group = torch.tensor([0, 0])
    assert group_advantages(torch.tensor([1.0, 2.0]), group).adv_N.dtype == torch.float32
    assert (
        group_advantages(torch.tensor([1.0, 2.0], dtype=torch.bfloat16), group).adv_N.dtype == torch.float32
    )
    live = torch.tensor([1.0, 2.0], requires_grad=True)
    assert not group_advantages(live, group).adv_N.requires_grad


def test_incomplete_groups_are_named() -> None:
    reward, group = doubles([1, 2, 3, 4, 5]), torch.tensor([7, 7, 9, 9, 9])
    with pytest.raises(RuntimeError, match="cat: 2") as error:
        group_advantages(reward, group, group_size=3, names=["cat", "cat", "dog", "dog", "dog"])
    assert "dog" not in str(error.value)
    with pytest.raises(DataError, match="group 7: 2"):
        group_advantages(reward, group, group_size=3)
    with pytest.raises(DataError, match="single image"):
        group_advantages(reward[:1], group[:1])
    with pytest.raises(ValueError, match="nothing to be compared"):
        group_advantages(reward[:1], group[:1], group_size=1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rewards_that_are_no_numbers(bad: float) -> None:
    with pytest.raises(DataError, match=r"reward 1 of image 2 \(dog\)"):
        group_advantages(
            doubles([[1, 2, 3, 4], [1, 2, bad, 4]]),
            torch.tensor([0, 0, 1, 1]),
            names=["cat", "cat", "dog", "dog"],
        )


@pytest.mark.parametrize("weights", [[1.0], [0.0, 0.0], [1.0, math.nan], [math.inf, 1.0]])
def test_unusable_weights(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        group_advantages(doubles([[1, 2], [3, 4]]), torch.tensor([0, 0]), weights=weights)


@pytest.mark.parametrize(
    "options",
    [
        {"scale": "global"},
        {"combine": "product"},
        {"eps": 0.0},
        {"eps": math.nan},
        {"clip": 0.0},
        {"clip": (1.0, 2.0)},
        {"clip": math.nan},
    ],
)
def test_unusable_options(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        AdvantageOptions(**options)
