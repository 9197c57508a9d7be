"""GRPO on denoising steps: every trained step of an image is an action with its own clipped ratio."""

from __future__ import annotations

import math

import torch

from modules.objective.aggregation import Aggregation, GlobalCounts, step_weights, weighted_sum
from modules.objective.policy_gradient.base import (
    PolicyOut,
    StepOptions,
    StepTerms,
    online_loss,
    require_finite,
    require_gradient,
)


@online_loss("GRPO")
def grpo(terms: StepTerms, options: StepOptions, counts: GlobalCounts) -> PolicyOut:
    """``max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))`` with ``r = exp(logp_new - logp_old)``.

    A ratio at the edge of the clip keeps its gradient. With the guard the ratio is
    ``exp((logp_new - logp_old) k + mean_gap / (2 k))``. Steps are independent of each other, so the terms may
    hold one step at a time (``image_steps_B``). Sources: DeepSeekMath (arXiv 2402.03300), Flow-GRPO
    (arXiv 2505.05470), GRPO-Guard (arXiv 2510.22319).

    Args:
        counts: counts of the whole optimizer step.

    Returns:
        The share of this micro-batch; coefficients ``logp``, ``kl`` and ``mean_gap``.

    Raises:
        NonFiniteError: a log-probability, ratio or KL is NaN or infinite.
    """
    dtype = terms.logp_new_BT.dtype
    mask_BT = terms.mask_BT.bool()
    weight_BT = step_weights(
        terms.mask_BT, terms.group_B, options.aggregation, counts, terms.image_steps_B, dtype
    )
    difference_BT = log_difference(terms)
    ratio_BT = _log_ratio(difference_BT, terms, options).exp()
    require_finite("a ratio of log-probabilities", ratio_BT, mask_BT)
    adv_B1 = terms.adv_B.detach().to(dtype).unsqueeze(1)
    low, high = 1.0 - options.clip_low, 1.0 + options.clip_high
    kept_BT = ~(((adv_B1 > 0) & (ratio_BT > high)) | ((adv_B1 < 0) & (ratio_BT < low)))
    loss_BT = torch.where(kept_BT, -adv_B1 * ratio_BT, -adv_B1 * ratio_BT.detach().clamp(low, high))
    policy = weighted_sum(loss_BT, mask_BT, weight_BT)
    kl, kl_coefficient_BT = reference_kl(terms, options, counts)
    slope_BT = torch.where(kept_BT & mask_BT, -adv_B1 * ratio_BT.detach() * weight_BT, 0.0)
    coefficients = {"logp": slope_BT, **kl_coefficient_BT}
    if options.guard and terms.guard_scale_BT is not None:
        scale_BT = torch.where(mask_BT, terms.guard_scale_BT.detach().to(dtype), 1.0)
        coefficients |= {"logp": slope_BT * scale_BT, "mean_gap": slope_BT / (2.0 * scale_BT)}
    loss = policy + options.kl_beta * kl if options.kl_beta else policy
    shares, maxima = ratio_metrics(terms, difference_BT.detach(), ratio_BT.detach(), options, counts)
    shares |= {"policy_loss": policy.detach(), "kl": kl.detach(), "loss": loss.detach()}
    return PolicyOut(loss, coefficients, shares, maxima)


def log_difference(terms: StepTerms) -> torch.Tensor:
    """``logp_new - logp_old``, 0 where masked, (B, T), with the gradient of the new ones."""
    mask_BT = terms.mask_BT.bool()
    require_finite("a new log-probability", terms.logp_new_BT, mask_BT)
    require_finite("an old log-probability", terms.logp_old_BT, mask_BT)
    require_finite("an advantage", terms.adv_B)
    zero = torch.zeros((), dtype=terms.logp_new_BT.dtype, device=terms.logp_new_BT.device)
    new_BT = torch.where(mask_BT, terms.logp_new_BT, zero)
    return new_BT - torch.where(mask_BT, terms.logp_old_BT.detach(), zero)


def _log_ratio(difference_BT: torch.Tensor, terms: StepTerms, options: StepOptions) -> torch.Tensor:
    if not options.guard:
        return difference_BT
    if terms.mean_gap_BT is None or terms.guard_scale_BT is None:
        raise ValueError("regulated ratios need mean_gap_BT and guard_scale_BT")
    mask_BT = terms.mask_BT.bool()
    require_finite("a distance of means", terms.mean_gap_BT, mask_BT)
    require_gradient("mean_gap_BT", terms.mean_gap_BT, terms.logp_new_BT)
    scale_BT = torch.where(mask_BT, terms.guard_scale_BT.detach().to(difference_BT.dtype), 1.0)
    require_finite("a scale of regulated ratios", scale_BT)
    if not bool((scale_BT > 0).all()):
        raise ValueError("regulated ratios need steps with noise; guard_scale_BT holds values <= 0")
    gap_BT = torch.where(mask_BT, terms.mean_gap_BT, torch.zeros_like(terms.mean_gap_BT))
    return difference_BT * scale_BT + gap_BT / (2.0 * scale_BT)


def reference_kl(
    terms: StepTerms, options: StepOptions, counts: GlobalCounts
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """``sample_mean`` of the KL to the reference, without its strength, and ``{"kl": coefficient}`` with it.

    Raises:
        ValueError: ``kl_beta`` is above 0, but the terms contain no KL.
    """
    if terms.ref_kl_BT is None:
        if options.kl_beta:
            raise ValueError("kl_beta is above 0, and no KL to the reference was given")
        return terms.logp_new_BT.new_zeros(()), {}
    require_finite("a KL to the reference", terms.ref_kl_BT, terms.mask_BT)
    if options.kl_beta:
        require_gradient("the KL to the reference", terms.ref_kl_BT, terms.logp_new_BT)
    weight_BT = step_weights(
        terms.mask_BT, None, Aggregation(), counts, terms.image_steps_B, terms.ref_kl_BT.dtype
    )
    kl = weighted_sum(terms.ref_kl_BT, terms.mask_BT, weight_BT)
    return kl, {"kl": options.kl_beta * weight_BT} if options.kl_beta else {}


@torch.no_grad()
def ratio_metrics(
    terms: StepTerms,
    difference_BT: torch.Tensor,
    ratio_BT: torch.Tensor,
    options: StepOptions,
    counts: GlobalCounts,
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Shares and maxima of the ratios. Averages are ``sample_mean`` over the images with trained steps,
    whatever the policy loss uses.
    """
    mask_BT, steps_B, dtype = terms.mask_BT.bool(), terms.image_steps_B, ratio_BT.dtype
    weight_BT = step_weights(terms.mask_BT, None, Aggregation(), counts.trained, steps_B, dtype)
    above_BT = ratio_BT > 1.0 + options.clip_high
    below_BT = ratio_BT < 1.0 - options.clip_low

    def mean(value_BT: torch.Tensor) -> torch.Tensor:
        return weighted_sum(value_BT.to(weight_BT.dtype), mask_BT, weight_BT)

    def largest(value_BT: torch.Tensor) -> torch.Tensor:
        seen = value_BT[mask_BT]
        return seen.max() if seen.numel() else value_BT.new_tensor(-math.inf)

    shares = {
        "approx_kl": mean(0.5 * difference_BT.square()),
        "clipfrac": mean(above_BT | below_BT),
        "clipfrac_high": mean(above_BT),
        "clipfrac_low": mean(below_BT),
        "ratio_mean": mean(ratio_BT),
    }
    return shares, {"ratio_max": largest(ratio_BT), "ratio_error": largest((ratio_BT - 1.0).abs())}
