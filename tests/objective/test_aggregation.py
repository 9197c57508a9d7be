"""Aggregation of step losses against plain Python loops, what it refuses, and sums over parts."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.objective.aggregation import (
    CONSTANT,
    MODES,
    PROMPT_MEAN,
    SAMPLE_MEAN,
    TOKEN_MEAN,
    Aggregation,
    GlobalCounts,
    count_steps,
    index_groups,
    step_weights,
    weighted_sum,
)
from modules.util.errors import DataError

L = 3.7
EACH = [Aggregation(mode, L if mode == CONSTANT else None) for mode in MODES]


def aggregate(
    value_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    group_B: torch.Tensor | None,
    aggregation: Aggregation,
    counts: GlobalCounts,
    image_steps_B: torch.Tensor | None = None,
) -> torch.Tensor:
    """This part's share of the loss of the optimizer step."""
    weight_BT = step_weights(mask_BT, group_B, aggregation, counts, image_steps_B, value_BT.dtype)
    return weighted_sum(value_BT, mask_BT, weight_BT)


def by_hand(values: list[list[float]], mask: list[list[int]], group: list[int], mode: Aggregation) -> float:
    n = len(values)
    sums = [sum(v * m for v, m in zip(*rows, strict=True)) for rows in zip(values, mask, strict=True)]
    steps = [sum(row) for row in mask]
    if mode.mode == SAMPLE_MEAN:
        return sum(s / max(k, 1) for s, k in zip(sums, steps, strict=True)) / n
    if mode.mode == TOKEN_MEAN:
        return sum(sums) / sum(steps)
    if mode.mode == CONSTANT:
        return sum(sums) / (mode.divisor * n)
    group_sum: dict[int, float] = defaultdict(float)
    group_steps: dict[int, int] = defaultdict(int)
    for s, k, g in zip(sums, steps, group, strict=True):
        group_sum[g] += s
        group_steps[g] += k
    return sum(group_sum[g] / max(group_steps[g], 1) for g in group_sum) / len(group_sum)


@st.composite
def step_tables(draw: st.DrawFn) -> tuple[list[list[float]], list[list[int]], list[int]]:
    images, steps = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    values = [[draw(st.floats(-3, 3, width=32)) for _ in range(steps)] for _ in range(images)]
    mask = [[draw(st.integers(0, 1)) for _ in range(steps)] for _ in range(images)]
    mask[0][0] = 1
    return values, mask, [draw(st.integers(0, 2)) for _ in range(images)]


def tensors(
    values: list[list[float]], mask: list[list[int]], group: list[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.tensor(values, dtype=torch.float64), torch.tensor(mask), torch.tensor(group)


def test_worked_example() -> None:
    """Two prompts of two images; image 2 lost a step, image 3 all of them."""
    value = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 1], [1, 1], [0, 1], [0, 0]])
    group = torch.tensor([5, 5, 9, 9])
    counts = count_steps(mask, group, group_size=2)
    assert (counts.images, counts.steps, counts.groups) == (4, 5, 2)

    def total(mode: str, divisor: float | None = None) -> float:
        return float(aggregate(value, mask, group, Aggregation(mode, divisor), counts))

    assert total(SAMPLE_MEAN) == pytest.approx((1.5 + 3.5 + 6 + 0) / 4, abs=1e-15)
    assert total(PROMPT_MEAN) == pytest.approx((10 / 4 + 6 / 1) / 2, abs=1e-15)
    assert total(TOKEN_MEAN) == pytest.approx(16 / 5, abs=1e-15)
    assert total(CONSTANT, 10) == pytest.approx(16 / 40, abs=1e-15)


@settings(max_examples=60, deadline=None)
@given(step_tables())
def test_every_mode_is_its_formula(
    table: tuple[list[list[float]], list[list[int]], list[int]],
) -> None:
    value, mask, group = tensors(*table)
    counts = count_steps(mask, group)
    for mode in EACH:
        assert float(aggregate(value, mask, group, mode, counts)) == pytest.approx(
            by_hand(*table, mode), abs=1e-12
        )


@settings(max_examples=60, deadline=None)
@given(step_tables(), st.data())
def test_micro_batches_ranks_and_steps_add_up(
    table: tuple[list[list[float]], list[list[int]], list[int]], data: st.DataObject
) -> None:
    """Images go to three ranks at random, each rank runs micro-batches of one image, each of them step by step."""
    value, mask, group = tensors(*table)
    rank_N = torch.tensor([data.draw(st.integers(0, 2)) for _ in group])
    slots = 3
    parts = []

    def collect(counts: torch.Tensor) -> torch.Tensor:
        parts.append(counts)
        return counts

    for rank in range(3):
        mine = rank_N == rank
        try:
            count_steps(mask[mine], group[mine], collect, slots=slots)
        except DataError:
            assert not mask[mine].any()
    total = sum(parts[1:], parts[0])
    for mode in EACH:
        whole = float(aggregate(value, mask, group, mode, count_steps(mask, group)))
        shares = 0.0
        for rank in range(3):
            mine = rank_N == rank
            counts = count_steps(mask[mine], group[mine], lambda _: total, slots=slots)
            for image in torch.nonzero(mine).flatten().tolist():
                for step in range(mask.shape[1]):
                    at = slice(image, image + 1)
                    shares += float(
                        aggregate(
                            value[at, step : step + 1],
                            mask[at, step : step + 1],
                            group[at],
                            mode,
                            counts,
                            image_steps_B=mask[at].sum(1),
                        )
                    )
        assert shares == pytest.approx(whole, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_all_modes_coincide_for_full_masks(groups: int, size: int, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(groups * size, steps, dtype=torch.float64, generator=generator)
    mask = torch.ones(groups * size, steps, dtype=torch.bool)
    group = torch.arange(groups).repeat_interleave(size)
    counts = count_steps(mask, group, group_size=size)
    for mode in MODES:
        aggregation = Aggregation(mode, float(steps) if mode == CONSTANT else None)
        total = aggregate(value, mask, group, aggregation, counts)
        assert float(total) == pytest.approx(float(value.mean()), abs=1e-13)


def test_modes_differ_under_uneven_masks() -> None:
    value = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 1], [1, 0], [1, 1]])
    group = torch.tensor([0, 0, 1])
    counts = count_steps(mask, group)
    totals = {round(float(aggregate(value, mask, group, mode, counts)), 9) for mode in EACH}
    assert len(totals) == len(MODES)


def test_masked_values_and_their_gradients_do_not_matter() -> None:
    value = torch.tensor([[1.0, math.nan], [2.0, math.inf]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False], [True, False]])
    loss = aggregate(value, mask, None, Aggregation(TOKEN_MEAN), count_steps(mask))
    loss.backward()
    assert float(loss.detach()) == 1.5
    assert value.grad.tolist() == [[0.5, 0.0], [0.5, 0.0]]


def test_group_ids_beyond_float32_stay_apart() -> None:
    group = torch.tensor([2**24, 2**24 + 1, 2**40, -3])
    mask = torch.tensor([[1, 0], [1, 1], [1, 1], [1, 0]])
    counts = count_steps(mask, group)
    assert counts.groups == 4
    assert counts.steps_of_group(group).tolist() == [1, 2, 2, 1]


# guards ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["mean", "", "sample mean", "SAMPLE_MEAN", "step_mean"])
def test_unknown_mode(mode: str) -> None:
    with pytest.raises(ValueError, match="unknown aggregation"):
        Aggregation(mode)


@pytest.mark.parametrize("divisor", [None, math.nan, math.inf, -math.inf, 0, 0.0, -1])
def test_constant_needs_a_finite_divisor_above_zero(divisor: float | None) -> None:
    with pytest.raises(ValueError, match="finite divisor above 0"):
        Aggregation(CONSTANT, divisor)


@pytest.mark.parametrize("mode", [SAMPLE_MEAN, PROMPT_MEAN, TOKEN_MEAN])
def test_no_other_mode_takes_a_divisor(mode: str) -> None:
    with pytest.raises(ValueError, match="has none"):
        Aggregation(mode, 4)


def test_counting_refuses_what_it_cannot_count() -> None:
    mask = torch.ones(4, 2)
    with pytest.raises(DataError, match="other than 0 and 1"):
        count_steps(mask * 0.5)
    with pytest.raises(DataError, match="masked"):
        count_steps(mask * 0)
    with pytest.raises(DataError, match="without a single image"):
        count_steps(mask[:0])
    with pytest.raises(DataError, match="group 7: 1"):
        count_steps(mask, torch.tensor([3, 3, 3, 7]), group_size=3)
    with pytest.raises(TypeError, match="int64"):
        count_steps(mask, torch.tensor([0.0, 0, 1, 1]))
    with pytest.raises(ValueError, match="slots"):
        count_steps(mask, torch.tensor([0, 0, 1, 1]), lambda counts: counts)
    with pytest.raises(ValueError, match="slots"):
        index_groups(torch.tensor([0, 2]), slots=2)


def test_aggregating_refuses_what_was_not_counted() -> None:
    value, mask = torch.ones(2, 2), torch.ones(2, 2)
    prompt = Aggregation(PROMPT_MEAN)
    with pytest.raises(DataError, match="group of every image"):
        aggregate(value, mask, None, prompt, count_steps(mask))
    with pytest.raises(DataError, match="none were counted"):
        aggregate(value, mask, torch.tensor([0, 0]), prompt, count_steps(mask))
    with pytest.raises(DataError, match=r"\[9\]"):
        aggregate(value, mask, torch.tensor([0, 9]), prompt, count_steps(mask, torch.tensor([0, 4])))
