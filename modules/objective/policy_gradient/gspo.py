"""GSPO: one ratio for a whole trajectory, the geometric mean of those of its steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from modules.objective.aggregation import (
    SAMPLE_MEAN,
    GlobalCounts,
    step_weights,
)
from modules.objective.policy_gradient.base import (
    PolicyOut,
    StepOptions,
    StepTerms,
    online_loss,
    require_finite,
)
from modules.objective.policy_gradient.grpo import log_difference, ratio_metrics, reference_kl


@dataclass(frozen=True)
class Segments:
    """Sequence ratios of S images, from all their steps.

    Args:
        ratio_S: ``R = exp(sum m (new - old) / N)``, 1 without steps.
        adv_S: ``A = sum m adv / N``, 0 without steps.
        loss_S: ``-min(R A, clip(R) A)``.
        kept_S: whether the clip lets the gradient through.
        steps_S: N, unmasked steps.
    """

    ratio_S: torch.Tensor
    adv_S: torch.Tensor
    loss_S: torch.Tensor
    kept_S: torch.Tensor
    steps_S: torch.Tensor


def _check_options(options: StepOptions) -> None:
    if options.guard:
        raise ValueError("regulated ratios are defined for single steps")
    mode = options.aggregation.mode
    if mode != SAMPLE_MEAN and (options.normalize_by_documents or options.gspo_weighting == "document"):
        raise ValueError(f"the aggregation {mode} has its own divisor; images cannot be weighted as well")


def segments(
    difference_F: torch.Tensor,
    adv_F: torch.Tensor,
    mask_F: torch.Tensor,
    image_F: torch.Tensor,
    images: int,
    clip_low: float,
    clip_high: float,
) -> Segments:
    """Sequence ratios from flattened steps, detached.

    Args:
        difference_F: new minus old log-probabilities.
        image_F: which image a step belongs to, int64 from 0.
        images: S.

    Raises:
        TypeError: the indices are not int64.
    """
    dtype = difference_F.dtype
    mask_F = mask_F.bool()
    if image_F.dtype != torch.int64:
        raise TypeError(f"image indices are int64, not {image_F.dtype}")
    columns_3F = torch.stack(
        (difference_F.detach(), adv_F.detach().to(dtype), torch.ones_like(adv_F, dtype=dtype))
    )
    columns_3F = torch.where(mask_F, columns_3F, torch.zeros_like(columns_3F))
    sums_3S = torch.zeros(3, images, dtype=dtype, device=difference_F.device)
    sums_3S.index_add_(1, image_F, columns_3F)
    log_S, adv_S, steps_S = sums_3S
    least_S = steps_S.clamp(min=1)
    ratio_S, adv_S = (log_S / least_S).exp(), adv_S / least_S
    require_finite("a sequence ratio", ratio_S)
    low, high = 1.0 - clip_low, 1.0 + clip_high
    kept_S = ((adv_S > 0) & (ratio_S <= high)) | ((adv_S < 0) & (ratio_S >= low))
    loss_S = -torch.minimum(ratio_S * adv_S, ratio_S.clamp(low, high) * adv_S)
    return Segments(ratio_S, adv_S, loss_S, kept_S, steps_S)


def _coefficient(found: Segments, weight_F: torch.Tensor, image_F: torch.Tensor) -> torch.Tensor:
    """d loss / d logp of each step: -R A / N for the segment, times its N equal weights."""
    slope_S = torch.where(found.kept_S, -found.ratio_S * found.adv_S, 0.0)
    return slope_S[image_F] * weight_F


def _with_gradient(
    value: torch.Tensor, coefficient: torch.Tensor, logp_new: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """``value`` with ``coefficient`` as its gradient, because autograd does not connect sums over ranks."""
    if not logp_new.requires_grad:
        return value
    return value + (coefficient * torch.where(mask, logp_new - logp_new.detach(), 0.0)).sum()


@online_loss("GSPO")
def gspo(terms: StepTerms, options: StepOptions, counts: GlobalCounts) -> PolicyOut:
    """``-min(R A, clip(R, 1 - clip_low, 1 + clip_high) A)`` of whole trajectories.

    ``length``: sum_s N_s l_s over the unmasked steps of the optimizer step, or over its images
    (``normalize_by_documents``; T times as much for equal T). ``document``: mean of l_s over the images, as
    in the paper. Another aggregation than ``sample_mean`` takes l_s as the loss of each of its steps. Each
    image must be here with all its steps. Source: Zheng et al. 2025 (arXiv 2507.18071).

    Args:
        counts: counts of the whole optimizer step.

    Returns:
        The share of this micro-batch; coefficients ``logp`` (the same for all unmasked steps of an image, so
        one factor may be applied to a stashed sum of gradients) and ``kl``.

    Raises:
        NonFiniteError: a log-probability, ratio or KL is NaN or infinite.
        ValueError: the options contradict each other.
    """
    _check_options(options)
    if terms.image_steps_B is not None and not torch.equal(
        terms.image_steps_B.to(terms.mask_BT.device).long(), terms.mask_BT.long().sum(1)
    ):
        raise ValueError("GSPO takes all steps of an image together; image_steps_B says some are missing")
    mask_BT, dtype = terms.mask_BT.bool(), terms.logp_new_BT.dtype
    images, steps = mask_BT.shape
    image_F = torch.arange(images, device=mask_BT.device).repeat_interleave(steps)
    difference_BT = log_difference(terms)
    found = segments(
        difference_BT.reshape(-1),
        terms.adv_B.repeat_interleave(steps),
        mask_BT.reshape(-1),
        image_F,
        images,
        options.clip_low,
        options.clip_high,
    )
    weight_BT = _weights(terms, options, counts, dtype)
    coefficient_BT = _coefficient(found, weight_BT.reshape(-1), image_F).reshape(mask_BT.shape)
    value = (weight_BT * found.loss_S[:, None]).sum()
    policy = _with_gradient(value, coefficient_BT, terms.logp_new_BT, mask_BT)
    kl, kl_coefficient = reference_kl(terms, options, counts)
    loss = policy + options.kl_beta * kl if options.kl_beta else policy
    ratio_BT = found.ratio_S[:, None].expand(mask_BT.shape)
    shares, maxima = ratio_metrics(terms, difference_BT.detach(), ratio_BT, options, counts)
    outside_S = (found.ratio_S > 1.0 + options.clip_high) | (found.ratio_S < 1.0 - options.clip_low)
    shares |= {
        "policy_loss": policy.detach(),
        "kl": kl.detach(),
        "loss": loss.detach(),
        "segment_clipfrac": outside_S.to(dtype).sum() / counts.trained.images,
    }
    return PolicyOut(loss, {"logp": coefficient_BT, **kl_coefficient}, shares, maxima)


def _weights(
    terms: StepTerms, options: StepOptions, counts: GlobalCounts, dtype: torch.dtype
) -> torch.Tensor:
    """The weight of the segment loss at each of its steps, (B, T)."""
    if options.aggregation.mode == SAMPLE_MEAN and options.gspo_weighting == "length":
        return terms.mask_BT.to(dtype) / (counts.images if options.normalize_by_documents else counts.steps)
    return step_weights(terms.mask_BT, terms.group_B, options.aggregation, counts, dtype=dtype)
