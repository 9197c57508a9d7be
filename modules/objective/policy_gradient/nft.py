"""NFT: good images attract the policy, bad ones attract its mirror image about the old policy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from modules.objective.policy_gradient.anchors import GuardedOptions, held
from modules.objective.policy_gradient.base import ImageTerms, PolicyOut, online_loss, require_finite

ERROR_FLOOR = 1e-5
"""Each branch is divided by its mean absolute error of x_0, but at least by this."""


@dataclass(frozen=True)
class NFTOptions(GuardedOptions):
    """Options of NFT.

    Args:
        strength: b, distance of the implied policies from the old one; > 0, usually <= 1.
    """

    strength: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.strength) or self.strength <= 0:
            raise ValueError(f"strength of NFT is {self.strength!r}; it must be finite and above 0")


def optimality(adv_B: torch.Tensor, adv_max: float) -> torch.Tensor:
    """``clip(A / (2 adv_max) + 1/2, 0, 1)``: the certainty that an image is good, (B,)."""
    return (adv_B / (2.0 * adv_max) + 0.5).clamp(0.0, 1.0)


@online_loss("NFT")
def nft(terms: ImageTerms, options: NFTOptions, images: int) -> PolicyOut:
    """``mean_i r |x0(v+) - x0|^2 / w+ + (1 - r) |x0(v-) - x0|^2 / w-``, means over the latent.

    ``w+`` and ``w-`` are the mean absolute errors of x_0 of their branches, held constant, so that all
    timesteps count equally. ``v+ = (1 - b) v_old + b v`` and ``v- = (1 + b) v_old - b v``. x_0 is linear in
    the prediction, so its error is ``x0_factor`` times that of the prediction. No groups are needed, and no
    log-probabilities. Source: DiffusionNFT (arXiv 2509.16117).

    Args:
        terms: with the prediction of the old policy.
        images: n, as for DGPO.

    Returns:
        The share of this micro-batch; each image counts on its own, so there are no coefficients.

    Raises:
        ValueError: the prediction of the old policy is missing, or that of the reference where ``kl_beta`` or
            ``norm_guard`` is above 0.
    """
    if terms.old_BChw is None:
        raise ValueError("NFT needs the prediction of the old policy")
    kind = torch.float64 if terms.prediction_BChw.dtype == torch.float64 else torch.float32
    new_BChw, old_BChw = terms.prediction_BChw.to(kind), terms.old_BChw.detach().to(kind)
    target_BChw, b = terms.target_BChw.detach().to(kind), options.strength
    good_B = optimality(terms.adv_B.detach().to(kind), options.adv_max)
    factor_B = terms.x0_factor_B.to(kind)
    positive_B = _branch((1.0 - b) * old_BChw + b * new_BChw - target_BChw, factor_B)
    negative_B = _branch((1.0 + b) * old_BChw - b * new_BChw - target_BChw, factor_B)
    policy_B = good_B * positive_B + (1.0 - good_B) * negative_B
    require_finite("an NFT loss", policy_B)
    loss = policy_B.sum() / images
    shares = {
        "policy_loss": loss.detach(),
        "positive_loss": positive_B.detach().sum() / images,
        "negative_loss": negative_B.detach().sum() / images,
        "old_deviation": (new_BChw - old_BChw).detach().square().flatten(1).mean(1).sum() / images,
    }
    loss, anchors = held(loss, new_BChw, terms.reference_BChw, options, images)
    return PolicyOut(loss, {}, shares | anchors | {"loss": loss.detach()})


def _branch(error_BChw: torch.Tensor, factor_B: torch.Tensor) -> torch.Tensor:
    """Mean squared error of x_0 over its weight, (B,)."""
    x0_error_Bd = error_BChw.flatten(1) * factor_B.unsqueeze(1)
    square_B = x0_error_Bd.square().mean(1)
    return square_B / x0_error_Bd.detach().abs().mean(1).clamp(min=ERROR_FLOOR)
