"""NFT: good images pull the policy towards them, bad ones push its mirror image about the old policy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from modules.objective.policy_gradient.base import PolicyOut, online_mode, require_finite, transition_kl
from modules.util.errors import ConfigError


@dataclass(frozen=True)
class NFTOptions:
    """The numbers of NFT.

    Args:
        strength: b, how far the implied policies stand from the old one; > 0, usually <= 1.
        adv_max: advantages of this size mean "good for certain"; the bound advantages are clipped to.
        weighting: ``adaptive`` divides each branch by its own mean absolute error of x_0, held constant, so
            that timesteps count alike; ``none`` does not.
        weight_floor: least divisor.
        kl_beta: strength of mean (v - v_ref)^2.
    """

    strength: float = 1.0
    adv_max: float = 5.0
    weighting: Literal["adaptive", "none"] = "adaptive"
    weight_floor: float = 1e-5
    kl_beta: float = 0.0

    def __post_init__(self) -> None:
        for name in ("strength", "adv_max", "weight_floor"):
            value = getattr(self, name)
            if not math.isfinite(value) or value <= 0:
                raise ConfigError(f"{name} of NFT is {value!r}; it must be finite and above 0")
        if not math.isfinite(self.kl_beta) or self.kl_beta < 0:
            raise ConfigError(f"kl_beta is {self.kl_beta!r}; it must be finite and >= 0")
        if self.weighting not in ("adaptive", "none"):
            raise ConfigError(f"weighting of NFT is {self.weighting!r}, not 'adaptive' or 'none'")


@dataclass(frozen=True)
class NFTTerms:
    """Predictions of B images at one timestep, (B, C, h, w), in the family's own kind of prediction.

    Args:
        prediction_BChw: of the policy, with gradient.
        old_BChw: of the policy that made the images, or its moving average.
        target_BChw: what predicts x_0 exactly.
        adv_B: advantages.
        x0_factor_B: by how much x_0 changes with the prediction, without its sign: sigma for flow,
            sqrt(1 - alpha) for v, sqrt(1 - alpha) / sqrt(alpha) for eps, 1 for x_0.
        reference_BChw: of the frozen reference, for the KL.
    """

    prediction_BChw: torch.Tensor
    old_BChw: torch.Tensor
    target_BChw: torch.Tensor
    adv_B: torch.Tensor
    x0_factor_B: torch.Tensor
    reference_BChw: torch.Tensor | None = None

    def __post_init__(self) -> None:
        shape = self.prediction_BChw.shape
        for name, value in vars(self).items():
            if value is None:
                continue
            if value.shape != (shape[:1] if name in ("adv_B", "x0_factor_B") else shape):
                raise ValueError(f"{name} has shape {tuple(value.shape)}, prediction_BChw {tuple(shape)}")
            require_finite(name, value)


def optimality(adv_B: torch.Tensor, adv_max: float) -> torch.Tensor:
    """``clip(A / (2 adv_max) + 1/2, 0, 1)``: how certainly an image is a good one, (B,)."""
    return (adv_B / (2.0 * adv_max) + 0.5).clamp(0.0, 1.0)


@online_mode("NFT", "decoupled")
def nft(terms: NFTTerms, options: NFTOptions, images: int) -> PolicyOut:
    """``mean_i r |x0(v+) - x0|^2 / w+ + (1 - r) |x0(v-) - x0|^2 / w-``, means over the latent.

    ``v+ = (1 - b) v_old + b v`` and ``v- = (1 + b) v_old - b v``. x_0 is linear in the prediction, so its
    error is ``x0_factor`` times that of the prediction. No groups are needed, and no log-probabilities.
    Source: DiffusionNFT (arXiv 2509.16117).

    Args:
        images: n, as for DGPO.

    Returns:
        The share of this micro-batch; each image counts on its own, so there are no coefficients.
    """
    kind = torch.float64 if terms.prediction_BChw.dtype == torch.float64 else torch.float32
    new_BChw, old_BChw = terms.prediction_BChw.to(kind), terms.old_BChw.detach().to(kind)
    target_BChw, b = terms.target_BChw.detach().to(kind), options.strength
    good_B = optimality(terms.adv_B.detach().to(kind), options.adv_max)
    factor_B = terms.x0_factor_B.to(kind)
    positive_B = _branch((1.0 - b) * old_BChw + b * new_BChw - target_BChw, factor_B, options)
    negative_B = _branch((1.0 + b) * old_BChw - b * new_BChw - target_BChw, factor_B, options)
    policy_B = good_B * positive_B + (1.0 - good_B) * negative_B
    require_finite("an NFT loss", policy_B)
    loss = policy_B.sum() / images
    shares = {
        "policy_loss": loss.detach(),
        "positive_loss": positive_B.detach().sum() / images,
        "negative_loss": negative_B.detach().sum() / images,
        "old_deviation": (new_BChw - old_BChw).detach().square().flatten(1).mean(1).sum() / images,
    }
    if options.kl_beta:
        if terms.reference_BChw is None:
            raise ValueError("kl_beta is above 0, and no prediction of the reference was given")
        kl = transition_kl("v", new_BChw, terms.reference_BChw.to(kind)).sum() / images
        loss = loss + options.kl_beta * kl
        shares["kl"] = kl.detach()
    return PolicyOut(loss, {}, shares | {"loss": loss.detach()})


def _branch(error_BChw: torch.Tensor, factor_B: torch.Tensor, options: NFTOptions) -> torch.Tensor:
    """Mean squared error of x_0 over its weight, (B,)."""
    x0_error_Bd = error_BChw.flatten(1) * factor_B.unsqueeze(1)
    square_B = x0_error_Bd.square().mean(1)
    if options.weighting == "none":
        return square_B
    return square_B / x0_error_Bd.detach().abs().mean(1).clamp(min=options.weight_floor)
