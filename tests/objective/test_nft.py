"""NFT against its formula written out with x_0 of each kind of prediction."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.objective.policy_gradient import ImageTerms
from modules.objective.policy_gradient.base import NonFiniteError
from modules.objective.policy_gradient.nft import NFTOptions, nft, optimality
from tests.objective.combining import combine_metrics
from tests.usual import usual

KINDS = ("flow", "v", "eps", "x0")
LEVELS = (0.2, 0.55, 0.9)


def draws(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    names = ("x0", "noise", "prediction", "old", "reference")
    out = {name: torch.randn(3, 2, 2, 2, generator=generator, dtype=torch.float64) for name in names}
    out["adv"] = 3 * torch.randn(3, generator=generator, dtype=torch.float64)
    return out


def setting(kind: str, level: float, drawn: dict[str, torch.Tensor]) -> tuple[torch.Tensor, float]:
    """The target of a prediction, and how much x_0 moves with it; alpha = 1 - level^2 where discrete."""
    x0, noise = drawn["x0"], drawn["noise"]
    signal = math.sqrt(1 - level**2)
    return {
        "flow": (noise - x0, level),
        "v": (signal * noise - level * x0, level),
        "eps": (noise, level / signal),
        "x0": (x0, 1.0),
    }[kind]


def recovered(
    kind: str, level: float, drawn: dict[str, torch.Tensor], prediction: torch.Tensor
) -> torch.Tensor:
    """x_0 from the noisy image and a prediction, as samplers compute it."""
    x0, noise = drawn["x0"], drawn["noise"]
    signal = math.sqrt(1 - level**2)
    x_t = (1 - level) * x0 + level * noise if kind == "flow" else signal * x0 + level * noise
    return {
        "flow": x_t - level * prediction,
        "v": signal * x_t - level * prediction,
        "eps": (x_t - level * prediction) / signal,
        "x0": prediction,
    }[kind]


def by_hand(
    kind: str, level: float, drawn: dict[str, torch.Tensor], new: torch.Tensor, options: NFTOptions
) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64)
    b, old = options.strength, drawn["old"]
    for i in range(3):
        good = min(max(float(drawn["adv"][i]) / (2 * options.adv_max) + 0.5, 0.0), 1.0)
        for share, mixed in ((good, (1 - b) * old + b * new), (1 - good, (1 + b) * old - b * new)):
            error = recovered(kind, level, drawn, mixed)[i] - drawn["x0"][i]
            weight = max(float(error.detach().abs().mean()), 1e-5)
            total = total + share * (error**2).mean() / weight
        total = total + options.kl_beta * ((new - drawn["reference"])[i] ** 2).mean()
        ratio = (new[i] ** 2).sum().sqrt() / (drawn["reference"][i] ** 2).sum().sqrt()
        if ratio > 1:
            total = total + options.norm_guard * (ratio - 1) ** 2
    return total / 3


def make(kind: str, level: float, drawn: dict[str, torch.Tensor]) -> ImageTerms:
    target, factor = setting(kind, level, drawn)
    return ImageTerms(
        drawn["prediction"].clone().requires_grad_(),
        target,
        drawn["adv"],
        torch.full((3,), factor, dtype=torch.float64),
        drawn["old"],
        drawn["reference"],
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", usual(LEVELS, LEVELS[1]))
@pytest.mark.parametrize(
    "options",
    [
        NFTOptions(),
        NFTOptions(strength=0.1, adv_max=2.0, kl_beta=0.3),
        NFTOptions(strength=1.5),
        NFTOptions(norm_guard=20.0),
        NFTOptions(kl_beta=0.3, norm_guard=5.0),
    ],
)
def test_value_and_gradient(kind: str, level: float, options: NFTOptions) -> None:
    drawn = draws(3)
    terms = make(kind, level, drawn)
    out = nft(terms, options, images=3)
    expected = by_hand(kind, level, drawn, terms.prediction_BChw, options)
    assert float(out.loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    (gradient,) = torch.autograd.grad(out.loss, terms.prediction_BChw)
    (reference,) = torch.autograd.grad(expected, terms.prediction_BChw)
    assert torch.allclose(gradient, reference, atol=1e-14, rtol=1e-11)


def test_the_norm_guard_holds_what_is_larger_than_the_reference_and_nothing_else() -> None:
    drawn = draws(3)
    ratios = drawn["prediction"].flatten(1).norm(dim=1) / drawn["reference"].flatten(1).norm(dim=1)
    assert {bool(one > 1) for one in ratios} == {True, False}, "both kinds are in the draw"
    terms = make("flow", 0.5, drawn)
    plain = nft(terms, NFTOptions(), images=3)
    guarded = nft(terms, NFTOptions(norm_guard=7.0), images=3)
    parts = [torch.autograd.grad(out.loss, terms.prediction_BChw)[0] for out in (guarded, plain)]
    gap = (parts[0] - parts[1]).flatten(1).norm(dim=1)
    assert [bool(one > 1e-12) for one in gap] == [bool(one > 1) for one in ratios]
    excess = 7.0 * float((ratios - 1).clamp(min=0).square().mean())
    assert combine_metrics([guarded])["norm_guard"] == pytest.approx(excess, rel=1e-12)
    assert float((guarded.loss - plain.loss).detach()) == pytest.approx(excess, rel=1e-9)


def test_worked_example() -> None:
    """One latent of one number: target 1, old 3, new 2, b = 1/2, A = 2.5 of 5, sigma = 1/2."""

    def one(value: float) -> torch.Tensor:
        return torch.full((1, 1, 1, 1), value, dtype=torch.float64)

    terms = ImageTerms(
        one(2).requires_grad_(), one(1), torch.tensor([2.5]).double(), torch.tensor([0.5]).double(), one(3)
    )
    out = nft(terms, NFTOptions(strength=0.5), images=1)
    # squared error of x_0 over its absolute value
    positive, negative = 0.5 * (2.5 - 1), 0.5 * (3.5 - 1)
    assert float(out.loss.detach()) == pytest.approx(0.75 * positive + 0.25 * negative, abs=1e-15)
    metrics = combine_metrics([out])
    assert metrics["positive_loss"] == pytest.approx(positive)
    assert metrics["negative_loss"] == pytest.approx(negative)
    assert metrics["old_deviation"] == pytest.approx(1.0)


def test_optimality() -> None:
    adv = torch.tensor([-9.0, -5.0, 0.0, 2.5, 5.0, 9.0])
    assert optimality(adv, 5.0).tolist() == [0.0, 0.0, 0.5, 0.75, 1.0, 1.0]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(-5, 5), st.floats(0.05, 1))
def test_on_policy_the_gradient_is_the_advantage_times_that_of_the_error(
    seed: int, adv: float, strength: float
) -> None:
    """At v = v_old both branches meet; good images are fitted, bad ones unfitted, average ones left alone."""
    drawn = draws(seed)
    terms = replace(
        make("flow", 0.5, drawn),
        old_BChw=drawn["prediction"],
        adv_B=torch.full((3,), adv, dtype=torch.float64),
    )
    out = nft(terms, NFTOptions(strength=strength), images=3)
    (gradient,) = torch.autograd.grad(out.loss, terms.prediction_BChw)
    error_Bd = 0.5 * (terms.prediction_BChw - terms.target_BChw).flatten(1)
    error = (error_Bd.square().mean(1) / error_Bd.detach().abs().mean(1)).mean()
    (fit,) = torch.autograd.grad(error, terms.prediction_BChw)
    assert torch.allclose(gradient, strength * adv / 5.0 * fit, atol=1e-14, rtol=1e-11)


def test_micro_batches_add_up() -> None:
    terms, options = make("v", 0.4, draws(1)), NFTOptions(kl_beta=0.2, norm_guard=3.0)
    whole = combine_metrics([nft(terms, options, images=3)])
    parts = [
        nft(ImageTerms(**{name: value[rows] for name, value in vars(terms).items()}), options, images=3)
        for rows in (slice(0, 1), slice(1, 3))
    ]
    for name, value in combine_metrics(parts).items():
        assert value == pytest.approx(whole[name], rel=1e-12), name


def test_a_perfect_branch_is_not_divided_by_zero() -> None:
    drawn = draws(0)
    terms = make("flow", 0.5, drawn)
    perfect = replace(
        terms, prediction_BChw=terms.target_BChw.clone().requires_grad_(), old_BChw=terms.target_BChw
    )
    out = nft(perfect, NFTOptions(), images=3)
    out.loss.backward()
    assert float(out.loss.detach()) == 0.0
    assert perfect.prediction_BChw.grad.isfinite().all()


def test_half_types_are_widened() -> None:
    drawn = {name: value.bfloat16() for name, value in draws(0).items()}
    out = nft(make("flow", 0.5, drawn), NFTOptions(), images=3)
    assert out.loss.dtype in (torch.float32, torch.float64)


@pytest.mark.parametrize(
    "options",
    [
        {"strength": 0.0},
        {"strength": math.nan},
        {"adv_max": -1.0},
        {"kl_beta": -0.1},
        {"norm_guard": -1.0},
        {"norm_guard": math.inf},
    ],
)
def test_unusable_options(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        NFTOptions(**options)


def test_unusable_terms_are_named() -> None:
    terms = make("flow", 0.5, draws(0))
    with pytest.raises(NonFiniteError, match="old_BChw is nan, image 0"):
        replace(terms, old_BChw=terms.old_BChw * math.nan)
    with pytest.raises(NonFiniteError, match="adv_B"):
        replace(terms, adv_B=terms.adv_B / 0)
    with pytest.raises(ValueError, match="target_BChw"):
        replace(terms, target_BChw=terms.target_BChw[:1])
    with pytest.raises(ValueError, match="old policy"):
        nft(replace(terms, old_BChw=None), NFTOptions(), images=3)
    with pytest.raises(ValueError, match="reference"):
        nft(replace(terms, reference_BChw=None), NFTOptions(kl_beta=0.1), images=3)
    with pytest.raises(ValueError, match="reference"):
        nft(replace(terms, reference_BChw=None), NFTOptions(norm_guard=1.0), images=3)
