"""GRPO on denoising steps: values worked out by hand and in plain Python, gradients, masks, metrics."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.objective.aggregation import CONSTANT, MODES, Aggregation, count_steps
from modules.objective.policy_gradient import (
    StepOptions,
    StepTerms,
    check_ratio,
    get_online_loss,
    transition_kl,
)
from modules.objective.policy_gradient.base import NonFiniteError
from modules.objective.policy_gradient.grpo import grpo
from modules.util.errors import DataError
from tests.objective.combining import combine_metrics
from tests.usual import usual

WIDE = StepOptions(clip_low=0.1, clip_high=0.2)


def doubles(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random_terms(seed: int, images: int = 6, steps: int = 3, spread: float = 0.3) -> StepTerms:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    old = normal(images, steps)
    mask = torch.rand(images, steps, generator=generator) < 0.7
    mask[0, 0] = True
    return StepTerms(
        logp_new_BT=(old + spread * normal(images, steps)).requires_grad_(),
        logp_old_BT=old,
        adv_B=normal(images),
        mask_BT=mask,
        group_B=torch.arange(images) // 2,
        ref_kl_BT=normal(images, steps).square().requires_grad_(),
        mean_gap_BT=normal(images, steps).square().requires_grad_(),
        guard_scale_BT=normal(images, steps).abs() + 0.5,
    )


def by_hand(terms: StepTerms, options: StepOptions) -> float:
    """The loss with Python floats; masks and averages spelled out again."""
    terms = replace(
        terms,
        **{name: value.detach() for name, value in vars(terms).items() if value is not None},
    )
    mask = terms.mask_BT.int().tolist()
    group = terms.group_B.tolist()
    n = len(mask)
    total, kl_total = 0.0, 0.0
    for i, row in enumerate(mask):
        for t, active in enumerate(row):
            if not active:
                continue
            log_ratio = float(terms.logp_new_BT[i, t]) - float(terms.logp_old_BT[i, t])
            if options.guard:
                k = float(terms.guard_scale_BT[i, t])
                log_ratio = log_ratio * k + float(terms.mean_gap_BT[i, t]) / (2 * k)
            r, a = math.exp(log_ratio), float(terms.adv_B[i])
            value = max(-a * r, -a * min(max(r, 1 - options.clip_low), 1 + options.clip_high))
            weight = {
                "sample_mean": 1 / (n * sum(row)),
                "token_mean": 1 / sum(map(sum, mask)),
                "constant": 1 / ((options.aggregation.divisor or 1) * n),
                "prompt_mean": 1
                / (len(set(group)) * sum(sum(mask[j]) for j in range(n) if group[j] == group[i])),
            }[options.aggregation.mode]
            total += weight * value
            kl_total += float(terms.ref_kl_BT[i, t]) / (n * sum(row))
    return total + options.kl_beta * kl_total


MODE_OPTIONS = [
    replace(WIDE, aggregation=Aggregation(mode, 2.5 if mode == CONSTANT else None), kl_beta=beta, guard=guard)
    for mode in MODES
    for beta in (0.0, 0.04)
    for guard in (False, True)
]


def test_worked_example() -> None:
    """Ratios 1.5, 0.5, 1.5, 0.5 with clip [0.9, 1.2]; the pessimistic side counts."""
    terms = StepTerms(
        logp_new_BT=doubles([[1.5, 0.5], [1.5, 0.5]]).log().requires_grad_(),
        logp_old_BT=torch.zeros(2, 2, dtype=torch.float64),
        adv_B=doubles([2.0, -1.0]),
        mask_BT=torch.ones(2, 2),
    )
    out = grpo(terms, WIDE, count_steps(terms.mask_BT))
    assert float(out.loss.detach()) == pytest.approx((-2 * 1.2 - 2 * 0.5 + 1.5 + 0.9) / 4, abs=1e-15)
    assert out.coefficients["logp"].flatten().tolist() == pytest.approx([0, -0.25, 0.375, 0], abs=1e-15)
    metrics = combine_metrics([out])
    assert metrics["clipfrac"] == 1.0
    assert metrics["clipfrac_high"] == metrics["clipfrac_low"] == 0.5
    assert metrics["ratio_mean"] == pytest.approx(1.0)
    assert metrics["ratio_max"] == pytest.approx(1.5)
    expected = (math.log(1.5) ** 2 + math.log(0.5) ** 2) / 4
    assert metrics["approx_kl"] == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("options", MODE_OPTIONS)
@pytest.mark.parametrize("seed", usual(range(3), 0))
def test_value_is_the_formula(options: StepOptions, seed: int) -> None:
    terms = random_terms(seed)
    out = grpo(terms, options, count_steps(terms.mask_BT, terms.group_B))
    assert float(out.loss.detach()) == pytest.approx(by_hand(terms, options), abs=1e-13)


@pytest.mark.parametrize("options", MODE_OPTIONS)
def test_gradient_is_that_of_finite_differences_and_of_the_coefficients(options: StepOptions) -> None:
    terms = random_terms(7)
    counts = count_steps(terms.mask_BT, terms.group_B)
    out = grpo(terms, options, counts)
    names = {"logp": "logp_new_BT", "kl": "ref_kl_BT", "mean_gap": "mean_gap_BT"}
    expected = set(names) - ({"kl"} if not options.kl_beta else set())
    assert set(out.coefficients) == expected - ({"mean_gap"} if not options.guard else set())
    out.loss.backward()
    for name, coefficient in out.coefficients.items():
        leaf = getattr(terms, names[name])
        assert torch.allclose(leaf.grad, coefficient, atol=1e-15, rtol=1e-13)
        assert not coefficient.requires_grad
        for i, t in ((0, 0), (1, 1), (4, 2)):
            step = torch.zeros_like(leaf)
            step[i, t] = 1e-6
            up, down = (
                by_hand(replace(terms, **{names[name]: leaf.detach() + sign * step}), options)
                for sign in (1, -1)
            )
            assert float(coefficient[i, t]) == pytest.approx((up - down) / 2e-6, abs=1e-8)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(MODE_OPTIONS), st.integers(1, 4))
def test_micro_batches_and_single_steps_add_up(seed: int, options: StepOptions, size: int) -> None:
    terms = random_terms(seed)
    counts = count_steps(terms.mask_BT, terms.group_B)
    whole = grpo(terms, options, counts)
    outs, columns = [], terms.mask_BT.shape[1]
    for start in range(0, len(terms.adv_B), size):
        rows = slice(start, start + size)
        for t in range(columns):
            part = StepTerms(
                **{
                    name: getattr(terms, name)[rows, t : t + 1]
                    for name in ("logp_new_BT", "logp_old_BT", "mask_BT", "ref_kl_BT", "mean_gap_BT")
                },
                guard_scale_BT=terms.guard_scale_BT[rows, t : t + 1],
                adv_B=terms.adv_B[rows],
                group_B=terms.group_B[rows],
                image_steps_B=terms.mask_BT[rows].sum(1),
            )
            outs.append(grpo(part, options, counts))
    assert float(sum(out.loss.detach() for out in outs)) == pytest.approx(
        float(whole.loss.detach()), abs=1e-13
    )
    parts, total = combine_metrics(outs), combine_metrics([whole])
    assert parts.keys() == total.keys()
    for name, value in total.items():
        # a ratio of several hundred has no 13 decimals
        assert parts[name] == pytest.approx(value, rel=1e-14, abs=1e-13), name
    for out in outs:
        out.loss.backward()
    assert torch.allclose(terms.logp_new_BT.grad, whole.coefficients["logp"], atol=1e-14, rtol=0)


def test_on_policy_the_ratio_is_one_and_the_gradient_that_of_the_log_probability() -> None:
    for dtype in (torch.float32, torch.float64):
        terms = random_terms(3)
        old = terms.logp_old_BT.to(dtype)
        live = replace(
            terms,
            logp_old_BT=old,
            logp_new_BT=old.clone().requires_grad_(),
            adv_B=terms.adv_B.to(dtype),
            ref_kl_BT=None,
            mean_gap_BT=torch.zeros_like(old, requires_grad=True),
        )
        for options in (StepOptions(), StepOptions(clip_low=0, clip_high=0), StepOptions(guard=True)):
            out = grpo(live, options, count_steps(terms.mask_BT))
            metrics = combine_metrics([out])
            assert metrics["ratio_error"] == 0.0
            assert metrics["clipfrac"] == metrics["approx_kl"] == 0.0
            if not options.guard:
                each = terms.mask_BT / (6 * terms.mask_BT.sum(1, keepdim=True).clamp(min=1))
                expected = -live.adv_B[:, None] * each.to(dtype)
                assert torch.allclose(out.coefficients["logp"], expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize(("adv", "ratio"), [(1.0, 1.25), (-1.0, 0.75)])
def test_the_edge_of_the_clip_keeps_its_whole_gradient(adv: float, ratio: float) -> None:
    new = doubles([[0.0]]).requires_grad_()
    old = -doubles([[ratio]]).log()
    assert float((new - old).exp().detach()) == ratio
    terms = StepTerms(new, old, doubles([adv]), torch.ones(1, 1))
    out = grpo(terms, StepOptions(clip_low=0.25, clip_high=0.25), count_steps(terms.mask_BT))
    out.loss.backward()
    assert float(new.grad) == float(out.coefficients["logp"]) == -adv * ratio
    assert combine_metrics([out])["clipfrac"] == 0.0


def test_masked_steps_may_hold_anything() -> None:
    terms = random_terms(5)
    mask = terms.mask_BT
    spoilt = replace(
        terms,
        **{
            name: torch.where(mask, getattr(terms, name).detach(), bad).requires_grad_()
            for name, bad in (
                ("logp_new_BT", math.nan),
                ("logp_old_BT", math.inf),
                ("ref_kl_BT", math.nan),
                ("mean_gap_BT", math.inf),
                ("guard_scale_BT", 0.0),
            )
        },
    )
    options = replace(WIDE, guard=True, kl_beta=0.1)
    clean, out = (grpo(each, options, count_steps(mask)) for each in (terms, spoilt))
    assert float(clean.loss.detach()) == float(out.loss.detach())
    out.loss.backward()
    for name in ("logp_new_BT", "ref_kl_BT", "mean_gap_BT"):
        grad = getattr(spoilt, name).grad
        assert grad.isfinite().all()
        assert (grad[~mask] == 0).all()


def test_numbers_that_are_none_are_named() -> None:
    terms = replace(random_terms(5), mask_BT=torch.ones(6, 3))
    counts = count_steps(terms.mask_BT)

    def broken(name: str, value: float) -> StepTerms:
        tensor = getattr(terms, name).detach().clone()
        tensor[(2, 1) if tensor.dim() == 2 else 2] = value
        return replace(terms, **{name: tensor.requires_grad_()})

    options = replace(WIDE, kl_beta=0.1)
    for name, text in (
        ("logp_new_BT", "new log-probability is nan, image 2, step 1"),
        ("logp_old_BT", "old log-probability is nan, image 2, step 1"),
        ("ref_kl_BT", "KL to the reference is nan, image 2, step 1"),
        ("adv_B", "advantage is nan, image 2"),
    ):
        with pytest.raises(NonFiniteError, match=text):
            grpo(broken(name, math.nan), options, counts)
    with pytest.raises(NonFiniteError, match="ratio of log-probabilities is inf, image 2, step 1"):
        grpo(broken("logp_new_BT", 1e6), options, counts)
    with pytest.raises(NonFiniteError, match="distance of means"):
        grpo(broken("mean_gap_BT", math.inf), replace(options, guard=True), counts)
    with pytest.raises(ValueError, match="guard_scale_BT"):
        grpo(broken("guard_scale_BT", 0.0), replace(options, guard=True), counts)


def test_a_kl_without_gradient_is_refused() -> None:
    terms = random_terms(1)
    silent = replace(terms, ref_kl_BT=terms.ref_kl_BT.detach())
    counts = count_steps(terms.mask_BT)
    with pytest.raises(RuntimeError, match="no gradient"):
        grpo(silent, replace(WIDE, kl_beta=0.1), counts)
    assert combine_metrics([grpo(silent, WIDE, counts)])["kl"] > 0
    with pytest.raises(RuntimeError, match="no gradient"):
        grpo(replace(terms, mean_gap_BT=terms.mean_gap_BT.detach()), replace(WIDE, guard=True), counts)
    with pytest.raises(ValueError, match="no KL"):
        grpo(replace(terms, ref_kl_BT=None), replace(WIDE, kl_beta=0.1), counts)
    with pytest.raises(ValueError, match="mean_gap_BT"):
        grpo(replace(terms, mean_gap_BT=None), replace(WIDE, guard=True), counts)


@pytest.mark.parametrize(
    "options",
    [
        {"clip_low": -0.1},
        {"clip_low": 1.0},
        {"clip_high": math.nan},
        {"kl_beta": -1.0},
        {"kl_beta": math.inf},
        {"gspo_weighting": "token"},
    ],
)
def test_unusable_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        StepOptions(**options)


def test_shapes_and_types_are_checked() -> None:
    terms = random_terms(0)
    with pytest.raises(ValueError, match="logp_old_BT"):
        replace(terms, logp_old_BT=terms.logp_old_BT[:, :1])
    with pytest.raises(ValueError, match="adv_B"):
        replace(terms, adv_B=terms.adv_B[:1])
    with pytest.raises(TypeError, match="bfloat16"):
        replace(terms, logp_new_BT=terms.logp_new_BT.detach().bfloat16())


# KL to the reference --------------------------------------------------------------------------------------


def test_kinds_of_kl() -> None:
    new = doubles([[[[1.0, 2.0]]], [[[0.0, 4.0]]]]).requires_grad_()
    reference = torch.zeros(2, 1, 1, 2, dtype=torch.float64)
    std, dt = 0.5, -0.2
    means = [2.5, 8.0]
    exact = transition_kl("exact", new, reference, std)
    assert exact.tolist() == pytest.approx([mean / (2 * 0.25) for mean in means])
    divergence = torch.distributions.kl_divergence(
        torch.distributions.Normal(new, std), torch.distributions.Normal(reference, std)
    )
    assert torch.allclose(exact, divergence.flatten(1).mean(1), atol=1e-14)
    flow = transition_kl("flow_grpo", new, reference, std, dt)
    assert flow.tolist() == pytest.approx([mean / (2 * 0.25 / 0.2) for mean in means])
    assert torch.allclose(exact, 5 * flow)
    for kind in ("x", "v"):
        assert transition_kl(kind, new, reference).tolist() == pytest.approx(means)
    per_image = transition_kl("exact", new, reference, doubles([0.5, 1.0]))
    assert per_image.tolist() == pytest.approx([5.0, 4.0])


@pytest.mark.parametrize("kind", ["exact", "flow_grpo", "x", "v"])
def test_kl_has_the_gradient_of_the_policy_alone(kind: str) -> None:
    new, reference = (torch.randn(2, 1, 2, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    transition_kl(kind, new, reference, 0.5, -0.2).sum().backward()
    factor = {"exact": 1 / 0.5, "flow_grpo": 0.2 / 0.5, "x": 1.0, "v": 1.0}[kind]
    expected = 2 * (new - reference).detach() / 4 * factor
    assert torch.allclose(new.grad, expected, atol=1e-14)
    assert reference.grad is None


def test_kl_is_wide_and_needs_noise() -> None:
    new = torch.full((1, 1, 1, 2), 3.0, dtype=torch.bfloat16)
    assert transition_kl("x", new, new * 0).dtype == torch.float32
    for std in (0.0, -1.0, math.nan, None):
        with pytest.raises(ValueError, match="std"):
            transition_kl("exact", new, new, std)
    for dt in (None, 0.0, 0.1):
        with pytest.raises(ValueError, match="dt"):
            transition_kl("flow_grpo", new, new, 0.5, dt)
    with pytest.raises(ValueError, match="unknown kind"):
        transition_kl("rl", new, new)
    with pytest.raises(ValueError, match="differ"):
        transition_kl("x", new, new[:, :, :, :1])


# modes and the first ratio --------------------------------------------------------------------------------


def test_losses_by_mode() -> None:
    assert get_online_loss("GRPO") is grpo
    with pytest.raises(ValueError, match="PPO"):
        get_online_loss("PPO")


def test_the_first_ratio_is_checked() -> None:
    assert check_ratio(0.0, "error") is None
    assert check_ratio(3e-7, "error", 2.5e-5) is None
    assert check_ratio(1.0, "off") is None
    assert "3e-07" in check_ratio(3e-7, "warn")
    for value in (3e-7, math.nan):
        with pytest.raises(DataError, match="before the first update"):
            check_ratio(value, "error")
    with pytest.raises(ValueError):
        check_ratio(0.0, "maybe")
