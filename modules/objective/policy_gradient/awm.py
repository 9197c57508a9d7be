"""AWM: the supervised loss on a model's own images, weighted by advantage within a clipped ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from modules.objective.policy_gradient.anchors import GuardedOptions, held
from modules.objective.policy_gradient.base import (
    ImageTerms,
    PolicyOut,
    online_loss,
    require_finite,
)


@dataclass(frozen=True)
class AWMOptions(GuardedOptions):
    """Options of AWM.

    Args:
        clip_low, clip_high: ratios are clipped to [1 - clip_low, 1 + clip_high]; of the order of 1e-4, since
            errors are means over the latent. ``clip_low`` < 1.
    """

    clip_low: float = 1e-4
    clip_high: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("clip_low", "clip_high"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{name} is {value!r}; it must be finite and >= 0")
        if self.clip_low >= 1:
            raise ValueError(f"clip_low is {self.clip_low!r}; ratios are above 0, so it must be below 1")


@online_loss("AWM")
def awm(terms: ImageTerms, options: AWMOptions, images: int) -> PolicyOut:
    """``mean_i -min(R A, clip(R, 1 - clip_low, 1 + clip_high) A)`` with ``R = exp(e_old - e)``.

    e is the mean squared error of the prediction over the latent: minus e stands for the log-likelihood of
    the image, so that R is how much more likely the image has become since the old policy. At R = 1 the
    gradient is that of ``A e``, the supervised loss weighted by the advantage. Source: Xue et al. 2025 (arXiv
    2509.25050), with the same weight for all noise levels.

    Args:
        terms: with the prediction of the old policy, at the same noise.
        images: n, as for DGPO.

    Returns:
        The share of this micro-batch; each image counts on its own, so there are no coefficients.

    Raises:
        NonFiniteError: a ratio is NaN or infinite.
        ValueError: the prediction of the old policy is missing, or that of the reference where ``kl_beta`` or
            ``norm_guard`` is above 0.
    """
    if terms.old_BChw is None:
        raise ValueError("AWM needs the prediction of the old policy")
    kind = torch.float64 if terms.prediction_BChw.dtype == torch.float64 else torch.float32
    new_BChw, target_BChw = terms.prediction_BChw.to(kind), terms.target_BChw.detach().to(kind)
    adv_B = terms.adv_B.detach().to(kind)
    error_B = (new_BChw - target_BChw).square().flatten(1).mean(1)
    old_B = (terms.old_BChw.detach().to(kind) - target_BChw).square().flatten(1).mean(1)
    ratio_B = (old_B - error_B).exp()
    require_finite("a ratio of AWM", ratio_B)
    low, high = 1.0 - options.clip_low, 1.0 + options.clip_high
    policy_B = -torch.minimum(ratio_B * adv_B, ratio_B.clamp(low, high) * adv_B)
    loss = policy_B.sum() / images
    seen_B = ratio_B.detach()
    above_B, below_B = seen_B > high, seen_B < low
    shares = {
        "policy_loss": loss.detach(),
        "dsm_loss": error_B.detach().sum() / images,
        "ratio_mean": seen_B.sum() / images,
        "clipfrac": (above_B | below_B).to(kind).sum() / images,
        "clipfrac_high": above_B.to(kind).sum() / images,
        "clipfrac_low": below_B.to(kind).sum() / images,
    }
    loss, anchors = held(loss, new_BChw, terms.reference_BChw, options, images)
    maxima = {"ratio_max": seen_B.max(), "ratio_error": (seen_B - 1.0).abs().max()}
    return PolicyOut(loss, {}, shares | anchors | {"loss": loss.detach()}, maxima)
