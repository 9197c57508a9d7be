"""DGPO: the loss by plain Python, its identity with the group preference loss, and three exact schedules."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.objective.gradient_stash import stash_gradients
from modules.objective.policy_gradient.base import NonFiniteError
from modules.objective.policy_gradient.dgpo import (
    DenoisingTerms,
    DGPOOptions,
    GroupScores,
    clip_mask,
    dgpo,
)
from modules.util.errors import DataError
from tests.objective.combining import combine_metrics

PLAIN = DGPOOptions(beta=3.0, clip_dsm=False)


def doubles(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random_terms(seed: int, groups: int = 3, size: int = 4) -> DenoisingTerms:
    generator = torch.Generator().manual_seed(seed)

    def uniform() -> torch.Tensor:
        return torch.rand(groups * size, generator=generator, dtype=torch.float64)

    dsm = uniform()
    group = torch.arange(groups).repeat_interleave(size)
    return DenoisingTerms(
        dsm_B=dsm.clone().requires_grad_(),
        adv_B=torch.randn(groups * size, generator=generator, dtype=torch.float64),
        group_B=group[torch.randperm(len(group), generator=generator)],
        reference_B=uniform(),
        old_B=dsm + 0.2 * (uniform() - 0.5),
        kl_B=uniform().requires_grad_(),
    )


def select(terms: DenoisingTerms, rows: Any) -> DenoisingTerms:
    return DenoisingTerms(**{name: value[rows] for name, value in vars(terms).items() if value is not None})


def by_hand(terms: DenoisingTerms, options: DGPOOptions, size: int) -> tuple[float, list[float], list[bool]]:
    """Loss, weights and clip mask in plain Python."""
    n = len(terms.adv_B)
    reference = terms.old_B if options.use_ema_ref else terms.reference_B
    score = dict.fromkeys(terms.group_B.tolist(), 0.0)
    for i in range(n):
        gain = float(terms.dsm_B[i].detach() - reference[i])
        score[int(terms.group_B[i])] += float(terms.adv_B[i]) * options.beta * gain / size
    weights = [1 / (1 + math.exp(-score[g])) for g in terms.group_B.tolist()]
    clipped = []
    for i in range(n):
        ratio = math.exp(float(terms.old_B[i] - terms.dsm_B[i].detach()))
        positive = float(terms.adv_B[i]) > 0
        clipped.append(ratio > 1 + options.clip_high if positive else ratio < 1 + options.clip_low)
    loss = sum(
        w * float(a) * float(d) for w, a, d in zip(weights, terms.adv_B, terms.dsm_B.detach(), strict=True)
    )
    return (loss + options.kl_beta * float(terms.kl_B.detach().sum())) / n, weights, clipped


def test_worked_example() -> None:
    """One pair, K = 2: the good image improved by 0.1, the bad one by 0.3; s = 2 (-0.1 + 0.3) / 2 = 0.2."""
    dsm = doubles([0.4, 0.2]).requires_grad_()
    terms = DenoisingTerms(dsm, doubles([1.0, -1.0]), torch.tensor([7, 7]), doubles([0.5, 0.5]))
    out = dgpo(terms, DGPOOptions(beta=2.0, clip_dsm=False), images=2, group_size=2)
    weight = 1 / (1 + math.exp(-0.2))
    assert float(out.loss.detach()) == pytest.approx(weight * (0.4 - 0.2) / 2, abs=1e-15)
    out.loss.backward()
    assert dsm.grad.tolist() == pytest.approx([weight / 2, -weight / 2], abs=1e-15)


def test_an_improved_group_weighs_less() -> None:
    def weight(gain: float) -> float:
        terms = DenoisingTerms(
            doubles([0.5 - gain, 0.5 + gain]), doubles([1.0, -1.0]), torch.tensor([0, 0]), doubles([0.5, 0.5])
        )
        return combine_metrics([dgpo(terms, PLAIN, images=2, group_size=2)])["group_weight"]

    assert weight(0.0) == 0.5
    assert weight(0.3) < 0.5 < weight(-0.3)


@pytest.mark.parametrize(
    "options",
    [
        PLAIN,
        DGPOOptions(beta=3.0, clip_low=-0.02, clip_high=0.03),
        DGPOOptions(beta=3.0, clip_low=-0.02, clip_high=0.03, clip_kl=True, kl_beta=0.5),
        DGPOOptions(beta=3.0, clip_low=-0.02, clip_high=0.03, clip_dsm=False, clip_kl=True, kl_beta=0.5),
        DGPOOptions(beta=3.0, clip_low=-0.02, clip_high=0.03, kl_beta=0.5),
        DGPOOptions(beta=3.0, clip_dsm=False, use_ema_ref=True),
        DGPOOptions(beta=3.0, clip_dsm=False, kl_beta=0.5),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_value_gradient_and_metrics(options: DGPOOptions, seed: int) -> None:
    terms = random_terms(seed)
    out = dgpo(terms, options, images=12, group_size=4)
    expected, weights, clipped = by_hand(terms, options, 4)
    assert float(out.loss.detach()) == pytest.approx(expected, abs=1e-15)
    out.loss.backward()
    slopes = [
        0.0 if options.clip_dsm and off else w * float(a) / 12
        for w, a, off in zip(weights, terms.adv_B, clipped, strict=True)
    ]
    assert terms.dsm_B.grad.tolist() == pytest.approx(slopes, abs=1e-16)
    assert out.coefficients["dsm"].tolist() == pytest.approx(slopes, abs=1e-16)
    metrics = combine_metrics([out])
    if options.kl_beta:
        flow = [0.0 if options.clip_kl and off else options.kl_beta / 12 for off in clipped]
        assert terms.kl_B.grad.tolist() == pytest.approx(flow, abs=1e-16)
        assert out.coefficients["kl"].tolist() == pytest.approx(flow, abs=1e-16)
    else:
        assert terms.kl_B.grad is None
        assert set(out.coefficients) == {"dsm"}
    assert metrics["clip_ratio"] == pytest.approx(sum(clipped) / 12 if options.clips else 0.0)
    assert metrics["kl_div"] == pytest.approx(float(terms.kl_B.detach().mean()))
    assert metrics["kl_loss"] == pytest.approx(options.kl_beta * metrics["kl_div"])
    assert metrics["dgpo_loss"] + metrics["kl_loss"] == pytest.approx(metrics["loss"])
    assert metrics["dsm_loss"] == pytest.approx(float(terms.dsm_B.detach().mean()))
    assert 0 < sum(clipped) < 12


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 5), st.floats(0.1, 100))
def test_beta_times_the_gradient_is_that_of_the_group_preference_loss(
    seed: int, groups: int, size: int, beta: float
) -> None:
    terms = random_terms(seed, groups, size)
    options = replace(PLAIN, beta=beta)
    out = dgpo(terms, options, images=groups * size, group_size=size)
    (surrogate,) = torch.autograd.grad(out.loss, terms.dsm_B)
    per_group = []
    for g in range(groups):
        mine = terms.group_B == g
        gain = (terms.adv_B * (terms.dsm_B - terms.reference_B))[mine].sum()
        per_group.append(-torch.nn.functional.logsigmoid(-beta * gain / size))
    (expected,) = torch.autograd.grad(torch.stack(per_group).mean(), terms.dsm_B)
    assert torch.allclose(beta * surrogate, expected, atol=1e-13, rtol=1e-12)


def test_the_weight_carries_no_gradient() -> None:
    terms = random_terms(0)
    out = dgpo(terms, PLAIN, images=12, group_size=4)
    (gradient,) = torch.autograd.grad(out.loss, terms.dsm_B)
    _, weights, _ = by_hand(terms, PLAIN, 4)
    assert gradient.tolist() == pytest.approx(
        [w * float(a) / 12 for w, a in zip(weights, terms.adv_B, strict=True)], abs=1e-16
    )


def test_at_step_zero_the_moving_average_makes_every_weight_a_half() -> None:
    terms = random_terms(1)
    same = replace(terms, old_B=terms.dsm_B.detach().clone())
    out = dgpo(same, DGPOOptions(use_ema_ref=True), images=12, group_size=4)
    assert combine_metrics([out])["group_weight"] == 0.5
    assert combine_metrics([out])["clip_ratio"] == 0.0


def test_sides_of_the_clip() -> None:
    """A zero advantage goes with the negative ones; the edges themselves are inside."""
    ratio = doubles([1.3, 0.7, 1.3, 0.7, 1.3, 0.7, 1.0])
    terms = DenoisingTerms(
        dsm_B=torch.ones(7, dtype=torch.float64),
        adv_B=doubles([1, 1, -1, -1, 0, 0, 1]),
        group_B=torch.zeros(7, dtype=torch.int64),
        old_B=1 + ratio.log(),
    )
    options = DGPOOptions(clip_low=-0.1, clip_high=0.1)
    assert clip_mask(terms, options).tolist() == [True, False, False, True, False, True, False]
    edge = replace(terms, old_B=torch.ones(7, dtype=torch.float64))
    assert not clip_mask(edge, DGPOOptions(clip_low=0.0, clip_high=0.0)).any()


# complete groups ------------------------------------------------------------------------------------------


class Net(torch.nn.Module):
    """Predicts the target of each image, so that errors share parameters."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        self.weight = torch.nn.Parameter(torch.randn(3, 3, generator=generator, dtype=torch.float64))
        self.x_Bd, self.target_Bd = (
            torch.randn(12, 3, generator=generator, dtype=torch.float64) for _ in range(2)
        )

    def terms(self, base: DenoisingTerms, rows: Any) -> DenoisingTerms:
        error_B = (self.x_Bd[rows] @ self.weight - self.target_Bd[rows]).square().mean(1)
        return replace(select(base, rows), dsm_B=error_B, old_B=error_B.detach() + 0.01)


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


OPTIONS = DGPOOptions(beta=3.0, clip_low=-0.005, clip_high=0.02, kl_beta=0.0)


def whole_gradient(net: Net, base: DenoisingTerms, options: DGPOOptions) -> torch.Tensor:
    """From the definition, in one differentiated expression."""
    terms = net.terms(base, slice(None))
    _, weights, clipped = by_hand(terms, options, 4)
    live = torch.tensor([0.0 if off else 1.0 for off in clipped], dtype=torch.float64)
    loss = (doubles(weights) * terms.adv_B * terms.dsm_B * live).mean()
    return torch.autograd.grad(loss, net.weight)[0]


@pytest.mark.parametrize("size", [1, 2, 5, 12])
def test_two_passes_are_exact(size: int) -> None:
    net, base = Net(), random_terms(2)
    expected = whole_gradient(net, base, OPTIONS)
    parts = [torch.arange(12)[start : start + size] for start in range(0, 12, size)]
    scores = GroupScores(OPTIONS, 4)
    with torch.no_grad():
        for rows in parts:
            scores.add(net.terms(base, rows))
    weights = scores.weights()
    for rows in parts:
        dgpo(net.terms(base, rows), OPTIONS, images=12, group_size=4, weights=weights).loss.backward()
    assert relative(net.weight.grad, expected) < 1e-14


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_stash_is_exact_in_one_pass(size: int) -> None:
    """Group after group; the gradients of the KL take no weight and stay outside the stash."""
    options = replace(OPTIONS, kl_beta=0.5, clip_kl=True)
    net, base = Net(), random_terms(2)
    slope = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
    expected = whole_gradient(net, base, options)
    parameters = [net.weight]
    kl_total = 0.0
    for g in range(3):
        members = torch.nonzero(base.group_B == g).flatten()
        scores = GroupScores(options, 4)
        with stash_gradients(parameters) as stash:
            for rows in members.split(size):
                terms = replace(net.terms(base, rows), kl_B=slope * base.kl_B[rows].detach())
                out = dgpo(terms, options, images=12, group_size=4, weights="stash")
                out.loss.backward()
                kl_total += float((out.coefficients["kl"] * terms.kl_B).sum().detach())
                scores.add(terms)
            stash.merge(scores.weights().of(torch.tensor([g])))
    assert relative(net.weight.grad, expected) < 1e-14
    assert slope.grad is None, "the KL went through the stash"
    whole = dgpo(
        replace(net.terms(base, slice(None)), kl_B=slope * base.kl_B.detach()),
        options,
        images=12,
        group_size=4,
    )
    (through_kl,) = torch.autograd.grad(whole.loss, slope)
    assert kl_total == pytest.approx(float(through_kl), abs=1e-15)


def test_ranks_that_share_groups_add_up() -> None:
    """Three ranks hold unequal parts of every group; one sum over them and the shares are the whole."""
    net, base = Net(), random_terms(2)
    expected = whole_gradient(net, base, OPTIONS)
    ranks = [torch.arange(12)[a:b] for a, b in ((0, 5), (5, 6), (6, 12))]
    sent: list[torch.Tensor] = []
    for rows in ranks:
        scores = GroupScores(OPTIONS, 4)
        scores.add(net.terms(base, rows))
        with pytest.raises(DataError):
            scores.weights(lambda sums: sent.append(sums) or sums, slots=3)
    total = sum(sent[1:], sent[0])
    outs = [
        dgpo(net.terms(base, rows), OPTIONS, images=12, group_size=4, reduce=lambda _: total, slots=3)
        for rows in ranks
    ]
    gradient = sum(torch.autograd.grad(out.loss, net.weight)[0] for out in outs)
    assert relative(gradient, expected) < 1e-14
    whole = dgpo(net.terms(base, slice(None)), OPTIONS, images=12, group_size=4)
    expected_metrics = combine_metrics([whole])
    for name, value in combine_metrics(outs).items():
        assert value == pytest.approx(expected_metrics[name], abs=1e-14), name


def test_sums_of_partial_groups_are_another_gradient() -> None:
    """Sigmoids of halves of a group, as micro-batches on their own would take them, are no noise but wrong."""
    net, base = Net(), random_terms(2)
    strong = replace(OPTIONS, beta=100.0, clip_dsm=False)
    expected = torch.autograd.grad(
        dgpo(net.terms(base, slice(None)), strong, images=12, group_size=4).loss, net.weight
    )[0]
    partial = torch.zeros_like(expected)
    for g in range(3):
        for rows in torch.nonzero(base.group_B == g).flatten().split(2):
            terms = net.terms(base, rows)
            half = GroupScores(strong, 2)
            half.add(terms)
            weights = half.weights()
            out = dgpo(terms, strong, images=12, group_size=4, weights=weights)
            partial += torch.autograd.grad(out.loss, net.weight)[0]
    assert relative(partial, expected) > 0.05


def test_incomplete_groups_are_refused_by_name() -> None:
    terms = random_terms(0)
    rows = [*(terms.group_B != 1).nonzero().flatten().tolist(), int((terms.group_B == 1).nonzero()[0])]
    with pytest.raises(RuntimeError, match="group 1: 1"):
        dgpo(select(terms, rows), PLAIN, images=12, group_size=4)
    with pytest.raises(DataError, match="group 0: 4"):
        dgpo(terms, PLAIN, images=12, group_size=3)
    scores = GroupScores(PLAIN, 4)
    with pytest.raises(DataError, match="before any image"):
        scores.weights()
    scores.add(terms)
    with pytest.raises(DataError, match=r"\[9\]"):
        scores.weights().of(torch.tensor([9]))


# options and guards ---------------------------------------------------------------------------------------


def test_what_has_to_be_evaluated() -> None:
    plain = DGPOOptions(clip_dsm=False)
    assert (plain.needs_old, plain.needs_frozen_reference) == (False, True)
    assert (DGPOOptions().needs_old, DGPOOptions().needs_frozen_reference) == (True, True)
    assert replace(plain, clip_kl=True).needs_old
    averaged = replace(plain, use_ema_ref=True)
    assert (averaged.needs_old, averaged.needs_frozen_reference) == (True, False)
    assert replace(averaged, kl_beta=0.1).needs_frozen_reference


@pytest.mark.parametrize("kl_type", ["x", "exact", "flow_grpo", "x-based"])
def test_only_the_kl_of_velocities(kl_type: str) -> None:
    with pytest.raises(ValueError, match="no KL of kind"):
        DGPOOptions(kl_type=kl_type)


@pytest.mark.parametrize(
    "options",
    [
        {"beta": 0.0},
        {"beta": math.nan},
        {"kl_beta": -1.0},
        {"clip_low": 0.1},
        {"clip_high": -0.1},
        {"clip_low": -1.0},
        {"clip_high": math.inf},
    ],
)
def test_unusable_options(options: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        DGPOOptions(**options)


def test_what_is_missing_is_named() -> None:
    terms = random_terms(0)
    with pytest.raises(ValueError, match="reference_B"):
        dgpo(replace(terms, reference_B=None), PLAIN, images=12, group_size=4)
    with pytest.raises(ValueError, match="old_B"):
        dgpo(replace(terms, old_B=None), replace(PLAIN, use_ema_ref=True), images=12, group_size=4)
    with pytest.raises(ValueError, match="old_B"):
        dgpo(replace(terms, old_B=None), DGPOOptions(), images=12, group_size=4)
    with pytest.raises(ValueError, match="no KL"):
        dgpo(replace(terms, kl_B=None), replace(PLAIN, kl_beta=1.0), images=12, group_size=4)
    with pytest.raises(RuntimeError, match="no gradient"):
        dgpo(replace(terms, kl_B=terms.kl_B.detach()), replace(PLAIN, kl_beta=1.0), images=12, group_size=4)
    with pytest.raises(ValueError, match="stash"):
        dgpo(terms, PLAIN, images=12, group_size=4, weights="stach")


@pytest.mark.parametrize("name", ["dsm_B", "adv_B", "reference_B", "old_B", "kl_B"])
def test_numbers_that_are_none_are_named(name: str) -> None:
    terms = random_terms(0)
    value = getattr(terms, name).detach().clone()
    value[5] = math.nan
    with pytest.raises(NonFiniteError, match=f"{name} is nan, image 5"):
        replace(terms, **{name: value})


def test_types_are_checked() -> None:
    terms = random_terms(0)
    with pytest.raises(TypeError, match="dsm_B"):
        replace(terms, dsm_B=terms.dsm_B.detach().half())
    with pytest.raises(ValueError, match="old_B"):
        replace(terms, old_B=terms.old_B[:3])
    with pytest.raises(TypeError, match="int64"):
        dgpo(replace(terms, group_B=terms.group_B.float()), PLAIN, images=12, group_size=4)
