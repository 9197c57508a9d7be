"""AWM against its formula and its gradient written out image by image."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from modules.objective.policy_gradient import ImageTerms
from modules.objective.policy_gradient.awm import AWMOptions, awm
from modules.objective.policy_gradient.base import NonFiniteError
from tests.objective.combining import combine_metrics

N = 6
WIDE = {"clip_low": 0.5, "clip_high": 10.0}


def make(seed: int = 3, apart: float = 0.3) -> ImageTerms:
    """Six images, good and bad, whose errors have become smaller or larger since the old policy."""
    generator = torch.Generator().manual_seed(seed)
    names = ("prediction", "target", "move", "reference")
    drawn = {name: torch.randn(N, 2, 3, 2, generator=generator, dtype=torch.float64) for name in names}
    return ImageTerms(
        drawn["prediction"].clone().requires_grad_(),
        drawn["target"],
        torch.tensor([1.5, 1.5, -0.7, -0.7, 0.0, 3.0], dtype=torch.float64),
        torch.full((N,), 0.4, dtype=torch.float64),
        drawn["prediction"] + apart * drawn["move"],
        drawn["reference"],
    )


def by_hand(terms: ImageTerms, options: AWMOptions, images: int) -> tuple[float, torch.Tensor]:
    """The loss and its gradient by the prediction, from numbers alone."""
    loss, slope = 0.0, torch.zeros_like(terms.prediction_BChw)
    for i in range(N):
        new, target, old = (
            one[i].detach() for one in (terms.prediction_BChw, terms.target_BChw, terms.old_BChw)
        )
        numbers, adv = new.numel(), float(terms.adv_B[i])
        ratio = math.exp(float(((old - target) ** 2).sum() - ((new - target) ** 2).sum()) / numbers)
        bounded = min(max(ratio, 1 - options.clip_low), 1 + options.clip_high)
        loss -= min(ratio * adv, bounded * adv)
        outside = (adv > 0 and ratio > 1 + options.clip_high) or (adv < 0 and ratio < 1 - options.clip_low)
        if not outside:
            slope[i] += adv * ratio * 2 * (new - target) / numbers
        reference = terms.reference_BChw[i]
        loss += options.kl_beta * float(((new - reference) ** 2).mean())
        slope[i] += options.kl_beta * 2 * (new - reference) / numbers
        size, theirs = float(new.norm()), float(reference.norm())
        if size > theirs:
            loss += options.norm_guard * (size / theirs - 1) ** 2
            slope[i] += options.norm_guard * 2 * (size / theirs - 1) * new / (size * theirs)
    return loss / images, slope / images


@pytest.mark.parametrize(
    "options",
    [
        AWMOptions(),
        AWMOptions(**WIDE),
        AWMOptions(clip_low=0.02, clip_high=0.05),
        AWMOptions(clip_low=0.0, clip_high=0.0, kl_beta=0.3),
        AWMOptions(**WIDE, norm_guard=20.0),
        AWMOptions(kl_beta=0.3, norm_guard=5.0),
    ],
)
@pytest.mark.parametrize("apart", [0.3, 1e-4, 0.0])
def test_value_and_gradient(options: AWMOptions, apart: float) -> None:
    terms = make(apart=apart)
    out = awm(terms, options, images=8)
    loss, slope = by_hand(terms, options, images=8)
    assert float(out.loss.detach()) == pytest.approx(loss, rel=1e-12, abs=1e-15)
    (gradient,) = torch.autograd.grad(out.loss, terms.prediction_BChw)
    assert torch.allclose(gradient, slope, atol=1e-15, rtol=1e-11)


def test_what_has_moved_far_enough_in_its_direction_teaches_no_more() -> None:
    """Of images above and below the mean, those beyond the clip range on the side they are pushed to."""
    terms = make()
    ratio = [float(one) for one in _ratios(terms)]
    out = awm(terms, AWMOptions(clip_low=0.02, clip_high=0.02), images=N)
    (gradient,) = torch.autograd.grad(out.loss, terms.prediction_BChw)
    taught = [bool(one > 0) for one in gradient.flatten(1).norm(dim=1)]
    adv = terms.adv_B.tolist()
    wanted = [a != 0 and (r <= 1.02 if a > 0 else r >= 0.98) for a, r in zip(adv, ratio, strict=True)]
    assert taught == wanted and {True, False} <= set(wanted)
    metrics = combine_metrics([out])
    assert metrics["clipfrac_high"] == pytest.approx(sum(one > 1.02 for one in ratio) / N)
    assert metrics["clipfrac_low"] == pytest.approx(sum(one < 0.98 for one in ratio) / N)
    assert metrics["clipfrac"] == pytest.approx(metrics["clipfrac_high"] + metrics["clipfrac_low"])
    assert metrics["ratio_max"] == pytest.approx(max(ratio))
    assert metrics["ratio_error"] == pytest.approx(max(abs(one - 1) for one in ratio))


def _ratios(terms: ImageTerms) -> torch.Tensor:
    new, old = (
        (one.detach() - terms.target_BChw).square().flatten(1).mean(1)
        for one in (terms.prediction_BChw, terms.old_BChw)
    )
    return (old - new).exp()


def test_on_policy_it_is_the_supervised_loss_weighed_by_advantages() -> None:
    terms = make(apart=0.0)
    out = awm(terms, AWMOptions(clip_low=0.0, clip_high=0.0), images=N)
    (gradient,) = torch.autograd.grad(out.loss, terms.prediction_BChw)
    error_B = (terms.prediction_BChw - terms.target_BChw).square().flatten(1).mean(1)
    (weighed,) = torch.autograd.grad((terms.adv_B * error_B).mean(), terms.prediction_BChw)
    assert torch.allclose(gradient, weighed, atol=1e-15, rtol=1e-12)
    assert combine_metrics([out])["ratio_error"] == 0.0


def test_micro_batches_add_up() -> None:
    terms, options = make(), AWMOptions(clip_low=0.02, clip_high=0.05, kl_beta=0.2, norm_guard=3.0)
    whole = combine_metrics([awm(terms, options, images=N)])
    parts = [
        awm(ImageTerms(**{name: value[rows] for name, value in vars(terms).items()}), options, images=N)
        for rows in (slice(0, 1), slice(1, 3), slice(3, N))
    ]
    for name, value in combine_metrics(parts).items():
        assert value == pytest.approx(whole[name], rel=1e-12), name


def test_half_types_are_widened() -> None:
    terms = make()
    half = replace(terms, **{name: value.detach().bfloat16() for name, value in vars(terms).items()})
    assert awm(half, AWMOptions(), images=N).loss.dtype == torch.float32


@pytest.mark.parametrize(
    "options",
    [
        {"clip_low": 1.0},
        {"clip_low": -0.1},
        {"clip_high": math.inf},
        {"kl_beta": -0.1},
        {"norm_guard": math.nan},
    ],
)
def test_unusable_options(options: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        AWMOptions(**options)


def test_unusable_terms_are_named() -> None:
    terms = make()
    with pytest.raises(ValueError, match="old policy"):
        awm(replace(terms, old_BChw=None), AWMOptions(), images=N)
    for options in (AWMOptions(kl_beta=0.1), AWMOptions(norm_guard=1.0)):
        with pytest.raises(ValueError, match="reference"):
            awm(replace(terms, reference_BChw=None), options, images=N)
    with pytest.raises(NonFiniteError, match="a ratio of AWM is inf, image 0"):
        awm(replace(terms, old_BChw=terms.old_BChw + 100.0), AWMOptions(), images=N)
