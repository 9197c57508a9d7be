"""GSPO: sequence ratios by hand, weightings, ties, images without steps, steps spread over ranks, stashing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.objective.aggregation import CONSTANT, PROMPT_MEAN, TOKEN_MEAN, Aggregation, count_steps
from modules.objective.gradient_stash import stash_gradients
from modules.objective.policy_gradient import StepOptions, StepTerms
from modules.objective.policy_gradient.base import NonFiniteError
from modules.objective.policy_gradient.grpo import grpo
from modules.objective.policy_gradient.gspo import gspo, segments
from tests.objective.combining import combine_metrics
from tests.usual import usual

WIDE = StepOptions(clip_low=0.1, clip_high=0.2)
WAYS = [
    WIDE,
    replace(WIDE, normalize_by_documents=True),
    replace(WIDE, gspo_weighting="document"),
    replace(WIDE, aggregation=Aggregation(TOKEN_MEAN)),
    replace(WIDE, aggregation=Aggregation(CONSTANT, 2.5)),
    replace(WIDE, aggregation=Aggregation(PROMPT_MEAN)),
]


def doubles(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random_terms(seed: int, images: int = 6, steps: int = 3) -> StepTerms:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    old = normal(images, steps)
    mask = torch.rand(images, steps, generator=generator) < 0.7
    mask[0, 0], mask[1] = True, False
    return StepTerms(
        logp_new_BT=(old + 0.3 * normal(images, steps)).requires_grad_(),
        logp_old_BT=old,
        adv_B=normal(images),
        mask_BT=mask,
        group_B=torch.arange(images) // 2,
        ref_kl_BT=normal(images, steps).square().requires_grad_(),
    )


def by_hand(terms: StepTerms, options: StepOptions) -> torch.Tensor:
    """The loss once more, image by image, with autograd through the ratio."""
    mask, group = terms.mask_BT.bool(), terms.group_B.tolist()
    n, steps = len(mask), int(mask.sum())
    total = doubles(0.0)
    for i, row in enumerate(mask):
        count = int(row.sum())
        if not count:
            continue
        ratio = (terms.logp_new_BT[i] - terms.logp_old_BT[i])[row].mean().exp()
        adv = terms.adv_B[i]
        inside = 1 - options.clip_low <= float(ratio.detach()) <= 1 + options.clip_high
        clipped = ratio if inside else ratio.detach().clamp(1 - options.clip_low, 1 + options.clip_high)
        loss = -(
            ratio * adv if float((ratio * adv).detach()) <= float((clipped * adv).detach()) else clipped * adv
        )
        in_group = sum(int(mask[j].sum()) for j in range(n) if group[j] == group[i])
        mode = options.aggregation.mode
        if mode == CONSTANT:
            weight = count / (options.aggregation.divisor * n)
        elif mode == PROMPT_MEAN:
            weight = count / (len(set(group)) * in_group)
        elif mode == TOKEN_MEAN:
            weight = count / steps
        elif options.gspo_weighting == "document":
            weight = 1 / n
        else:
            weight = count / (n if options.normalize_by_documents else steps)
        total = total + weight * loss
    return total


def test_worked_example() -> None:
    """Image 0: ratios 4 and 1 make R = 2, clipped at 1.2. Image 1: one step, R = 1/2, kept for A > 0."""
    new = doubles([[4.0, 1.0], [0.5, 99.0]]).log().requires_grad_()
    terms = StepTerms(
        new, torch.zeros(2, 2, dtype=torch.float64), doubles([3.0, 2.0]), torch.tensor([[1, 1], [1, 0]])
    )
    counts = count_steps(terms.mask_BT)
    length = gspo(terms, WIDE, counts)
    assert float(length.loss.detach()) == pytest.approx((2 * -3.6 + 1 * -1.0) / 3, abs=1e-15)
    assert length.coefficients["logp"].flatten().tolist() == pytest.approx([0, 0, -1 / 3, 0], abs=1e-15)
    images = gspo(terms, replace(WIDE, normalize_by_documents=True), counts)
    assert float(images.loss.detach()) == pytest.approx((2 * -3.6 + 1 * -1.0) / 2, abs=1e-15)
    paper = gspo(terms, replace(WIDE, gspo_weighting="document"), counts)
    assert float(paper.loss.detach()) == pytest.approx((-3.6 - 1.0) / 2, abs=1e-15)
    assert paper.coefficients["logp"].flatten().tolist() == pytest.approx([0, 0, -0.5, 0], abs=1e-15)
    metrics = combine_metrics([length])
    assert metrics["ratio_max"] == pytest.approx(2.0)
    assert metrics["ratio_mean"] == pytest.approx(1.25)
    assert metrics["segment_clipfrac"] == metrics["clipfrac"] == 1.0
    assert metrics["clipfrac_high"] == metrics["clipfrac_low"] == 0.5


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("seed", usual(range(4), 0, 1))
def test_value_and_gradient_are_those_of_autograd(options: StepOptions, seed: int) -> None:
    terms = random_terms(seed)
    out = gspo(terms, options, count_steps(terms.mask_BT, terms.group_B))
    expected = by_hand(terms, options)
    assert float(out.loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-14)
    (gradient,) = torch.autograd.grad(expected, terms.logp_new_BT)
    assert torch.allclose(out.coefficients["logp"], gradient, atol=1e-15, rtol=1e-13)
    out.loss.backward()
    assert torch.equal(terms.logp_new_BT.grad, out.coefficients["logp"])


def test_equal_lengths_make_documents_worth_their_steps() -> None:
    terms = replace(random_terms(0), mask_BT=torch.ones(6, 3))
    counts = count_steps(terms.mask_BT)
    length, images, paper = (gspo(terms, options, counts) for options in WAYS[:3])
    assert float(images.loss.detach()) == pytest.approx(3 * float(length.loss.detach()), abs=1e-14)
    assert torch.allclose(images.coefficients["logp"], 3 * length.coefficients["logp"])
    assert float(paper.loss.detach()) == pytest.approx(float(length.loss.detach()), abs=1e-14)


def test_a_trajectory_of_one_step_is_grpo() -> None:
    terms = random_terms(2, steps=1)
    terms = replace(terms, mask_BT=torch.ones(6, 1))
    counts = count_steps(terms.mask_BT)
    options = replace(WIDE, kl_beta=0.04)
    sequence, step = gspo(terms, options, counts), grpo(terms, options, counts)
    assert float(sequence.loss.detach()) == pytest.approx(float(step.loss.detach()), abs=1e-15)
    for name in ("logp", "kl"):
        assert torch.allclose(sequence.coefficients[name], step.coefficients[name], atol=1e-16)


def test_on_policy_ratio_is_exactly_one() -> None:
    terms = random_terms(1)
    live = replace(terms, logp_new_BT=terms.logp_old_BT.clone().requires_grad_())
    metrics = combine_metrics([gspo(live, StepOptions(), count_steps(terms.mask_BT))])
    assert metrics["ratio_error"] == 0.0
    assert metrics["segment_clipfrac"] == 0.0


@pytest.mark.parametrize(("adv", "ratio"), [(1.0, 1.25), (-1.0, 0.75)])
def test_ties_keep_the_whole_gradient(adv: float, ratio: float) -> None:
    """On the edge both sides of the minimum are equal; half of the gradient would be lost by splitting it."""
    new = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    terms = StepTerms(new, -doubles([[ratio]]).log(), doubles([adv]), torch.ones(1, 1))
    gspo(terms, StepOptions(clip_low=0.25, clip_high=0.25), count_steps(terms.mask_BT)).loss.backward()
    assert float(new.grad) == -adv * ratio
    zero = replace(terms, logp_new_BT=terms.logp_old_BT.clone().requires_grad_())
    out = gspo(zero, StepOptions(clip_low=0.0, clip_high=0.0), count_steps(terms.mask_BT))
    assert float(out.coefficients["logp"]) == -adv


@pytest.mark.parametrize("options", WAYS)
def test_an_image_without_steps_counts_nothing(options: StepOptions) -> None:
    terms = random_terms(3)
    spoilt = replace(
        terms,
        logp_new_BT=torch.where(terms.mask_BT, terms.logp_new_BT.detach(), math.nan).requires_grad_(),
        logp_old_BT=torch.where(terms.mask_BT, terms.logp_old_BT, math.inf),
        ref_kl_BT=torch.where(terms.mask_BT, terms.ref_kl_BT.detach(), math.nan).requires_grad_(),
    )
    counts = count_steps(terms.mask_BT, terms.group_B)
    options = replace(options, kl_beta=0.1)
    clean, out = gspo(terms, options, counts), gspo(spoilt, options, counts)
    assert float(out.loss.detach()) == float(clean.loss.detach())
    out.loss.backward()
    for leaf in (spoilt.logp_new_BT, spoilt.ref_kl_BT):
        assert leaf.grad.isfinite().all()
        assert (leaf.grad[1] == 0).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(WAYS), st.integers(1, 5))
def test_micro_batches_add_up(seed: int, options: StepOptions, size: int) -> None:
    terms = random_terms(seed)
    options = replace(options, kl_beta=0.1)
    counts = count_steps(terms.mask_BT, terms.group_B)
    whole = gspo(terms, options, counts)
    parts = []
    for start in range(0, 6, size):
        rows = slice(start, start + size)
        values = {name: value[rows] for name, value in vars(terms).items() if value is not None}
        parts.append(gspo(StepTerms(**values), options, counts))
    totals, expected = combine_metrics(parts), combine_metrics([whole])
    for name, value in expected.items():
        assert totals[name] == pytest.approx(value, abs=1e-13), name
    joined = torch.cat([part.coefficients["logp"] for part in parts])
    assert torch.allclose(joined, whole.coefficients["logp"], atol=1e-16)


def test_halves_of_an_image_are_not_two_images() -> None:
    """Its ratio is the geometric mean over all its steps; those of its halves make another loss."""
    terms = replace(random_terms(4, steps=4), mask_BT=torch.ones(6, 4))
    whole = gspo(terms, WIDE, count_steps(terms.mask_BT))
    halved = StepTerms(
        terms.logp_new_BT.detach().reshape(12, 2), terms.logp_old_BT.reshape(12, 2),
        terms.adv_B.repeat_interleave(2), torch.ones(12, 2),
    )  # fmt: skip
    halves = gspo(halved, WIDE, count_steps(halved.mask_BT))
    assert abs(float(halves.loss - whole.loss.detach())) > 1e-5


def test_an_advantage_per_step_is_averaged_over_the_unmasked_ones() -> None:
    found = segments(
        doubles([0.0, 0.2, 9.0]),
        doubles([1.0, 3.0, 100.0]),
        torch.tensor([1, 1, 0]),
        torch.tensor([0, 0, 0]),
        2,
        0.5,
        0.5,
    )
    assert found.adv_S.tolist() == [2.0, 0.0]
    assert found.ratio_S.tolist() == pytest.approx([math.exp(0.1), 1.0])
    assert found.loss_S.tolist() == pytest.approx([-2 * math.exp(0.1), 0.0])
    assert found.steps_S.tolist() == [2, 0]


def test_stashed_gradients_and_two_passes_are_exact() -> None:
    """Step by step through a network: G = sum_t grad logp_t, then c G; or coefficients first, then a pass."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    parameters = list(net.parameters())
    x_BTd = torch.randn(5, 3, 4, dtype=torch.float64)
    terms = random_terms(8, images=5)
    with torch.no_grad():
        old_BT = net(x_BTd).squeeze(-1) + 0.05 * torch.randn(5, 3, dtype=torch.float64)
    terms = replace(terms, logp_old_BT=old_BT, ref_kl_BT=None, group_B=None)
    counts = count_steps(terms.mask_BT)
    options = replace(WIDE, gspo_weighting="document")

    live = replace(terms, logp_new_BT=net(x_BTd).squeeze(-1))
    expected = torch.autograd.grad(by_hand(replace(live, group_B=torch.arange(5)), options), parameters)

    with torch.no_grad():
        first = gspo(replace(terms, logp_new_BT=net(x_BTd).squeeze(-1)), options, counts)
    for t in range(3):
        (net(x_BTd[:, t]).squeeze(-1) * first.coefficients["logp"][:, t]).sum().backward()
    two_pass = [parameter.grad.clone() for parameter in parameters]
    net.zero_grad()

    for i in range(5):
        with stash_gradients(parameters) as stash:
            seen = []
            for t in range(3):
                logp = net(x_BTd[i : i + 1, t]).squeeze(-1)
                (logp * terms.mask_BT[i, t]).sum().backward()
                seen.append(logp.detach())
            row = slice(i, i + 1)
            one = StepTerms(
                torch.stack(seen, 1), terms.logp_old_BT[row], terms.adv_B[row], terms.mask_BT[row]
            )
            coefficient_T = gspo(one, options, counts).coefficients["logp"][0]
            stash.merge(coefficient_T[coefficient_T.abs().argmax()])
    for parameter, one, reference in zip(parameters, two_pass, expected, strict=True):
        assert torch.allclose(one, reference, atol=1e-15, rtol=1e-12)
        assert torch.allclose(parameter.grad, reference, atol=1e-15, rtol=1e-12)


def test_settings_that_contradict() -> None:
    terms = random_terms(0)
    counts = count_steps(terms.mask_BT)
    for mode in (Aggregation(TOKEN_MEAN), Aggregation(CONSTANT, 4.0)):
        assert gspo(terms, StepOptions(aggregation=mode), counts).loss.isfinite()
        for extra in ({"normalize_by_documents": True}, {"gspo_weighting": "document"}):
            with pytest.raises(ValueError, match="own divisor"):
                gspo(terms, StepOptions(aggregation=mode, **extra), counts)
    with pytest.raises(ValueError, match="single steps"):
        gspo(terms, StepOptions(guard=True), counts)


def test_unusable_input_is_named() -> None:
    terms = random_terms(0)
    counts = count_steps(terms.mask_BT)
    with pytest.raises(ValueError, match="all steps of an image"):
        gspo(replace(terms, image_steps_B=terms.mask_BT.sum(1) + 1), WIDE, counts)
    broken = terms.logp_new_BT.detach().clone()
    broken[0, 0] = math.nan
    with pytest.raises(NonFiniteError, match="new log-probability is nan, image 0, step 0"):
        gspo(replace(terms, logp_new_BT=broken), WIDE, counts)
    broken[0, 0] = 1e5
    with pytest.raises(NonFiniteError, match="sequence ratio is inf"):
        gspo(replace(terms, logp_new_BT=broken), WIDE, counts)
    with pytest.raises(RuntimeError, match="no gradient"):
        gspo(replace(terms, ref_kl_BT=terms.ref_kl_BT.detach()), replace(WIDE, kl_beta=1.0), counts)
    zeros = torch.zeros(2, dtype=torch.float64)
    with pytest.raises(TypeError, match="int64"):
        segments(zeros, zeros, torch.ones(2), torch.zeros(2, dtype=torch.int32), 1, 0.1, 0.1)
