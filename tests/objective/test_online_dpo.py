"""Online DPO: which images make a pair, and a loss that is the offline one on those pairs."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.objective.policy_gradient.base import NonFiniteError
from modules.objective.policy_gradient.online_dpo import RankedPairs, online_dpo, rank_pairs
from modules.objective.preference import ObjectiveOptions
from tests.objective.combining import combine_metrics


def doubles(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def as_set(pairs: RankedPairs) -> set[tuple[int, int]]:
    return set(zip(pairs.chosen_P.tolist(), pairs.rejected_P.tolist(), strict=True))


REWARDS = doubles([0.2, 0.9, 0.5, 0.5, 0.1, 0.7])
GROUPS = torch.tensor([4, 4, 8, 8, 4, 9])


def test_best_and_worst() -> None:
    pairs = rank_pairs(REWARDS, GROUPS)
    assert as_set(pairs) == {(1, 4)}
    assert pairs.skipped_groups == 2


def test_every_pair() -> None:
    assert as_set(rank_pairs(REWARDS, GROUPS, "all")) == {(1, 0), (1, 4), (0, 4)}
    narrow = rank_pairs(REWARDS, GROUPS, "all", min_gap=0.15)
    assert as_set(narrow) == {(1, 0), (1, 4)}
    assert len(narrow) == 2


def test_the_first_of_equal_ones() -> None:
    pairs = rank_pairs(doubles([1.0, 3.0, 3.0, 1.0]), torch.zeros(4, dtype=torch.int64))
    assert as_set(pairs) == {(1, 0)}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=9))
def test_pairs_are_those_of_a_plain_search(rows: list[tuple[int, int]]) -> None:
    rewards, groups = doubles([float(r) for r, _ in rows]), torch.tensor([g for _, g in rows])
    ordered = [
        (a, b) if rows[a][0] > rows[b][0] else (b, a)
        for a, b in combinations(range(len(rows)), 2)
        if rows[a][1] == rows[b][1] and rows[a][0] != rows[b][0]
    ]
    assert as_set(rank_pairs(rewards, groups, "all")) == set(ordered)
    best = rank_pairs(rewards, groups)
    used = {rows[a][1] for a, _ in ordered}
    assert len(best) == len(used)
    assert best.skipped_groups == len({g for _, g in rows} - used)
    for chosen, rejected in as_set(best):
        mine = [r for r, g in rows if g == rows[chosen][1]]
        assert (rows[chosen][0], rows[rejected][0]) == (max(mine), min(mine))


DSM, REFERENCE = [0.3, 0.5, 0.4, 0.2], [0.35, 0.4, 0.45, 0.1]


def by_hand(pairs: list[tuple[int, int]], beta: float, total: int) -> tuple[float, list[float]]:
    """Loss and its derivative by each error: -logsigmoid(beta ((ref_w - dsm_w) - (ref_l - dsm_l)))."""
    loss, slope = 0.0, [0.0] * len(DSM)
    for chosen, rejected in pairs:
        margin = (REFERENCE[chosen] - DSM[chosen]) - (REFERENCE[rejected] - DSM[rejected])
        loss += math.log1p(math.exp(-beta * margin)) / total
        pull = beta / (1 + math.exp(beta * margin)) / total
        slope[chosen] += pull
        slope[rejected] -= pull
    return loss, slope


@pytest.mark.parametrize("rows", [[(0, 1)], [(0, 1), (0, 2), (3, 1)]])
def test_value_gradient_and_metrics(rows: list[tuple[int, int]]) -> None:
    places = torch.tensor(rows)
    pairs = RankedPairs(places[:, 0], places[:, 1], 0)
    dsm = doubles(DSM).requires_grad_()
    out = online_dpo(dsm, doubles(REFERENCE), pairs, ObjectiveOptions(beta=4.0), total_pairs=5)
    loss, slope = by_hand(rows, 4.0, 5)
    assert float(out.loss.detach()) == pytest.approx(loss, abs=1e-15)
    out.loss.backward()
    assert dsm.grad.tolist() == pytest.approx(slope, abs=1e-15)
    assert out.coefficients["dsm"].tolist() == pytest.approx(slope, abs=1e-15)
    metrics = combine_metrics([out])
    margins = [(REFERENCE[a] - DSM[a]) - (REFERENCE[b] - DSM[b]) for a, b in rows]
    assert metrics["margin"] == pytest.approx(sum(margins) / 5)
    assert metrics["accuracy"] == pytest.approx(sum(m > 0 for m in margins) / 5)
    assert metrics["loss"] == pytest.approx(loss)


def test_micro_batches_of_pairs_add_up() -> None:
    rows = [(0, 1), (0, 2), (3, 1)]
    slopes, loss = torch.zeros(4, dtype=torch.float64), 0.0
    for chosen, rejected in rows:
        pair = RankedPairs(torch.tensor([chosen]), torch.tensor([rejected]), 0)
        out = online_dpo(doubles(DSM), doubles(REFERENCE), pair, ObjectiveOptions(beta=4.0), total_pairs=3)
        slopes += out.coefficients["dsm"]
        loss += float(out.loss)
    expected, slope = by_hand(rows, 4.0, 3)
    assert loss == pytest.approx(expected, abs=1e-15)
    assert slopes.tolist() == pytest.approx(slope, abs=1e-15)


def test_another_preference_loss() -> None:
    pair = RankedPairs(torch.tensor([0]), torch.tensor([1]), 0)
    dsm = doubles(DSM).requires_grad_()
    options = ObjectiveOptions(ipo_tau=2.0)
    out = online_dpo(dsm, doubles(REFERENCE), pair, options, total_pairs=1, objective="IPO")
    margin = 0.05 + 0.1
    assert float(out.loss.detach()) == pytest.approx((margin - 0.25) ** 2)
    assert out.coefficients["dsm"].tolist() == pytest.approx([0.2, -0.2, 0, 0])


def test_coefficients_do_without_gradients() -> None:
    pair = RankedPairs(torch.tensor([0]), torch.tensor([1]), 0)
    with torch.no_grad():
        out = online_dpo(doubles(DSM), doubles(REFERENCE), pair, ObjectiveOptions(beta=4.0), total_pairs=1)
    assert not out.loss.requires_grad
    assert out.coefficients["dsm"].tolist() == pytest.approx(by_hand([(0, 1)], 4.0, 1)[1])


def test_no_pairs_is_no_loss() -> None:
    none = rank_pairs(doubles([1.0, 1.0]), torch.tensor([0, 0]))
    assert (len(none), none.skipped_groups) == (0, 1)
    dsm = doubles([0.5, 0.4]).requires_grad_()
    out = online_dpo(dsm, doubles([0.5, 0.4]), none, ObjectiveOptions(), total_pairs=3)
    out.loss.backward()
    assert float(out.loss.detach()) == 0.0
    assert dsm.grad.tolist() == [0.0, 0.0]


def test_unusable_input() -> None:
    group = torch.tensor([0, 0])
    with pytest.raises(NonFiniteError, match="reward is nan, image 1"):
        rank_pairs(doubles([1.0, math.nan]), group)
    for arguments in ({"pairing": "random"}, {"min_gap": -1.0}, {"min_gap": math.nan}):
        with pytest.raises(ValueError):
            rank_pairs(doubles([1.0, 2.0]), group, **arguments)
    pair = RankedPairs(torch.tensor([0]), torch.tensor([1]), 0)
    with pytest.raises(NonFiniteError, match="dsm_B is inf, image 0"):
        online_dpo(doubles([math.inf, 1]), doubles([1, 1]), pair, ObjectiveOptions(), total_pairs=1)
    with pytest.raises(NonFiniteError, match="reference_B"):
        online_dpo(doubles([1, 1]), doubles([1, math.nan]), pair, ObjectiveOptions(), total_pairs=1)
    with pytest.raises(TypeError, match="dsm_B"):
        online_dpo(torch.ones(2).half(), torch.ones(2), pair, ObjectiveOptions(), total_pairs=1)
    with pytest.raises(ValueError, match="0 pairs"):
        online_dpo(torch.ones(2), torch.ones(2), pair, ObjectiveOptions(), total_pairs=0)
