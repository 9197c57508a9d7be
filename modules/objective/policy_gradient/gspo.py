"""GSPO: one ratio for a whole trajectory, the geometric mean of those of its steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from modules.objective.aggregation import (
    CONSTANT,
    SAMPLE_MEAN,
    TOKEN_MEAN,
    GlobalCounts,
    Reduce,
    step_weights,
)
from modules.objective.policy_gradient.base import (
    PolicyOut,
    StepOptions,
    StepTerms,
    online_mode,
    require_finite,
)
from modules.objective.policy_gradient.grpo import log_difference, ratio_metrics, reference_kl
from modules.util.errors import ConfigError


@dataclass(frozen=True)
class Segments:
    """Sequence ratios of S images, from all their steps on all ranks.

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


def check_gspo(options: StepOptions) -> list[str]:
    """What to warn of; called once, at the start.

    Raises:
        ConfigError: settings that contradict each other.
    """
    if options.guard:
        raise ConfigError("regulated ratios are defined for single steps", hint="use GRPO, or turn them off")
    mode = options.aggregation.mode
    if mode == SAMPLE_MEAN:
        return []
    if options.normalize_by_documents or options.gspo_weighting == "document":
        raise ConfigError(
            f"the aggregation {mode} has its own divisor; it leaves nothing to a weighting by documents",
            hint=f"use {SAMPLE_MEAN}, or gspo_weighting 'length' without normalize_by_documents",
        )
    if mode in (TOKEN_MEAN, CONSTANT):
        return [f"GSPO with {mode} counts long trajectories more; {SAMPLE_MEAN} is the safer choice"]
    return []


def segments(
    difference_F: torch.Tensor,
    adv_F: torch.Tensor,
    mask_F: torch.Tensor,
    document_F: torch.Tensor,
    documents: int,
    clip_low: float,
    clip_high: float,
    reduce: Reduce | None = None,
) -> Segments:
    """Sequence ratios from flattened steps, detached.

    Args:
        difference_F: new minus old log-probabilities.
        document_F: which image a step belongs to, int64 from 0; with ``reduce`` the same on every rank.
        documents: S; with ``reduce`` the largest of the ranks (``shared_documents``).
        reduce: adds up over ranks that hold other steps of the same images; called once, before exp and clip.
    """
    dtype = difference_F.dtype
    mask_F = mask_F.bool()
    if document_F.dtype != torch.int64:
        raise TypeError(f"document indices are int64, not {document_F.dtype}")
    columns_3F = torch.stack(
        (difference_F.detach(), adv_F.detach().to(dtype), torch.ones_like(adv_F, dtype=dtype))
    )
    columns_3F = torch.where(mask_F, columns_3F, torch.zeros_like(columns_3F))
    sums_3S = torch.zeros(3, documents, dtype=dtype, device=difference_F.device)
    sums_3S.index_add_(1, document_F, columns_3F)
    if reduce is not None:
        sums_3S = reduce(sums_3S)
    log_S, adv_S, steps_S = sums_3S
    least_S = steps_S.clamp(min=1)
    ratio_S, adv_S = (log_S / least_S).exp(), adv_S / least_S
    require_finite("a sequence ratio", ratio_S)
    low, high = 1.0 - clip_low, 1.0 + clip_high
    kept_S = ((adv_S > 0) & (ratio_S <= high)) | ((adv_S < 0) & (ratio_S >= low))
    loss_S = -torch.minimum(ratio_S * adv_S, ratio_S.clamp(low, high) * adv_S)
    return Segments(ratio_S, adv_S, loss_S, kept_S, steps_S)


def shared_documents(document_F: torch.Tensor, largest: Reduce | None = None) -> int:
    """Number of segments: one more than the highest index, over all ranks with ``largest`` (a MAX)."""
    count = document_F.new_zeros(()) if not document_F.numel() else document_F.max() + 1
    return int(count if largest is None else largest(count))


def gspo_steps(
    logp_new_F: torch.Tensor,
    logp_old_F: torch.Tensor,
    adv_F: torch.Tensor,
    mask_F: torch.Tensor,
    document_F: torch.Tensor,
    options: StepOptions,
    counts: GlobalCounts,
    documents: int | None = None,
    reduce: Reduce | None = None,
) -> tuple[torch.Tensor, torch.Tensor, Segments]:
    """GSPO of flattened steps, where an image's steps may lie on several ranks.

    Returns:
        This rank's share of the loss (its local steps' part of every segment, so ranks add up to the whole)
        with gradient by the local ``logp_new_F``; the coefficients (F,); the segments.
    """
    check_gspo(options)
    if options.aggregation.mode != SAMPLE_MEAN:
        raise ConfigError("GSPO of flattened steps is divided by the steps or images of the optimizer step")
    mask_F = mask_F.bool()
    require_finite("a new log-probability", logp_new_F, mask_F)
    require_finite("an old log-probability", logp_old_F, mask_F)
    difference_F = torch.where(
        mask_F, logp_new_F.detach() - logp_old_F.detach(), torch.zeros_like(logp_new_F)
    )
    found = segments(
        difference_F,
        adv_F,
        mask_F,
        document_F,
        shared_documents(document_F) if documents is None else documents,
        options.clip_low,
        options.clip_high,
        reduce,
    )
    if options.gspo_weighting == "document":
        weight_F = 1.0 / (counts.images * found.steps_S.clamp(min=1)[document_F])
    else:
        weight_F = torch.full_like(difference_F, 1.0 / counts.denominator(options.normalize_by_documents))
    weight_F = torch.where(mask_F, weight_F, 0.0)
    coefficient_F = _coefficient(found, weight_F, document_F)
    loss = (weight_F * found.loss_S[document_F]).sum()
    return _with_gradient(loss, coefficient_F, logp_new_F, mask_F), coefficient_F, found


def _coefficient(found: Segments, weight_F: torch.Tensor, document_F: torch.Tensor) -> torch.Tensor:
    """d loss / d logp of each step: -R A / N for the segment, times its N weights, which are alike."""
    slope_S = torch.where(found.kept_S, -found.ratio_S * found.adv_S, 0.0)
    return slope_S[document_F] * weight_F


def _with_gradient(
    value: torch.Tensor, coefficient: torch.Tensor, logp_new: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """``value`` with ``coefficient`` as its gradient: sums over ranks are not connected by autograd."""
    if not logp_new.requires_grad:
        return value
    return value + (coefficient * torch.where(mask, logp_new - logp_new.detach(), 0.0)).sum()


@online_mode("GSPO", "coupled")
def gspo(terms: StepTerms, options: StepOptions, counts: GlobalCounts) -> PolicyOut:
    """``-min(R A, clip(R, 1 - clip_low, 1 + clip_high) A)`` of whole trajectories.

    ``length``: sum_s N_s l_s over the unmasked steps of the optimizer step, or over its images
    (``normalize_by_documents``; T times as much for equal T). ``document``: mean of l_s over the images, as in
    the paper. Another aggregation than ``sample_mean`` takes l_s as the loss of each of its steps. Each
    image must be here with all its steps. Source: Zheng et al. 2025 (arXiv 2507.18071).

    Args:
        counts: of the whole optimizer step.

    Returns:
        The share of this micro-batch; coefficients ``logp`` (the same for all unmasked steps of an image, so
        one factor may be applied to a stashed sum of gradients) and ``kl``.

    Raises:
        NonFiniteError: a log-probability, ratio or KL that is no number.
    """
    check_gspo(options)
    if terms.image_steps_B is not None and not torch.equal(
        terms.image_steps_B.to(terms.mask_BT.device).long(), terms.mask_BT.long().sum(1)
    ):
        raise ValueError("GSPO takes all steps of an image together; image_steps_B says some are missing")
    mask_BT, dtype = terms.mask_BT.bool(), terms.logp_new_BT.dtype
    images, steps = mask_BT.shape
    document_F = torch.arange(images, device=mask_BT.device).repeat_interleave(steps)
    difference_BT = log_difference(terms)
    found = segments(
        difference_BT.reshape(-1),
        terms.adv_B.repeat_interleave(steps),
        mask_BT.reshape(-1),
        document_F,
        images,
        options.clip_low,
        options.clip_high,
    )
    weight_BT = _weights(terms, options, counts, dtype)
    coefficient_BT = _coefficient(found, weight_BT.reshape(-1), document_F).reshape(mask_BT.shape)
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
        "segment_clipfrac": outside_S.to(dtype).sum() / counts.images,
    }
    return PolicyOut(loss, {"logp": coefficient_BT, **kl_coefficient}, shares, maxima)


def _weights(
    terms: StepTerms, options: StepOptions, counts: GlobalCounts, dtype: torch.dtype
) -> torch.Tensor:
    """What the segment loss counts for at each of its steps, (B, T)."""
    if options.aggregation.mode == SAMPLE_MEAN and options.gspo_weighting == "length":
        return terms.mask_BT.to(dtype) / counts.denominator(options.normalize_by_documents)
    return step_weights(terms.mask_BT, terms.group_B, options.aggregation, counts, dtype=dtype)
