"""DGPO: groups of images compared by how much better the policy denoises the good ones than a reference does.

The weight of a group, sigmoid(s_g), takes all its K images. They need not be in one micro-batch:

* exact: the group is in one micro-batch (or in that of several ranks): ``dgpo``.
* two passes: ``GroupScores`` collects the scores of a no-grad pass, its ``weights`` go into ``dgpo``.
* stash: ``dgpo`` with ``weights="stash"`` gives the loss without the weights, to be differentiated into an
  empty buffer of the group; when all K images are done the buffer is merged with its ``GroupWeights.of``.

Sources: arXiv 2510.08425.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from modules.objective.aggregation import Reduce, check_group_sizes, index_groups
from modules.objective.policy_gradient.base import (
    PolicyOut,
    online_loss,
    require_finite,
    require_gradient,
    require_wide,
)
from modules.util.errors import DataError


@dataclass(frozen=True)
class DGPOOptions:
    """Options of DGPO.

    Args:
        beta: strength of the anchor to the reference within the sigmoid.
        clip_low, clip_high: an image of positive advantage is clipped when ``exp(old - dsm)`` is above
            1 + ``clip_high``, another when it is below 1 + ``clip_low``; ``clip_low`` <= 0 <= ``clip_high``.
        clip_dsm: remove the gradient of clipped images.
        clip_kl: remove the gradient of their KL.
        kl_beta: strength of mean (v - v_ref)^2.
        kl_type: ``v``, the only type that DGPO supports.
        use_ema_ref: compare with the moving average (``old``) instead of the frozen reference.
    """

    beta: float = 100.0
    clip_low: float = -1e-4
    clip_high: float = 1e-4
    clip_dsm: bool = True
    clip_kl: bool = False
    kl_beta: float = 0.0
    kl_type: str = "v"
    use_ema_ref: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.beta) or self.beta <= 0:
            raise ValueError(f"beta of DGPO is {self.beta!r}; it must be finite and above 0")
        if not math.isfinite(self.kl_beta) or self.kl_beta < 0:
            raise ValueError(f"kl_beta is {self.kl_beta!r}; it must be finite and >= 0")
        if not (math.isfinite(self.clip_low) and math.isfinite(self.clip_high)):
            raise ValueError(f"clip range ({self.clip_low!r}, {self.clip_high!r}) is not finite")
        if not -1.0 < self.clip_low <= 0.0 <= self.clip_high:
            raise ValueError(f"clip range ({self.clip_low!r}, {self.clip_high!r}) does not contain 0")
        if self.kl_type != "v":
            raise ValueError(f"DGPO has no KL of kind {self.kl_type!r}, only 'v'")

    @property
    def clips(self) -> bool:
        return self.clip_dsm or self.clip_kl

    @property
    def needs_old(self) -> bool:
        """True if a moving average of the policy is kept and evaluated (``old_B``)."""
        return self.clips or self.use_ema_ref

    @property
    def needs_frozen_reference(self) -> bool:
        """True if the frozen reference is evaluated (``reference_B``, and the KL)."""
        return self.kl_beta > 0 or not self.use_ema_ref


@dataclass(frozen=True)
class DenoisingTerms:
    """Errors of B images at one timestep; mean squared errors over the latent, (B,), fp32.

    Args:
        dsm_B: of the policy, with gradient.
        adv_B: advantages.
        group_B: int64 group ids.
        reference_B: of the frozen reference.
        old_B: of the moving average.
        kl_B: mean (v - v_ref)^2, with gradient.
    """

    dsm_B: torch.Tensor
    adv_B: torch.Tensor
    group_B: torch.Tensor
    reference_B: torch.Tensor | None = None
    old_B: torch.Tensor | None = None
    kl_B: torch.Tensor | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None:
                continue
            if value.shape != self.dsm_B.shape or value.dim() != 1:
                raise ValueError(f"{name} has shape {tuple(value.shape)}, dsm_B {tuple(self.dsm_B.shape)}")
            if name != "group_B":
                require_wide(name, value)
                require_finite(name, value)


def group_terms(terms: DenoisingTerms, options: DGPOOptions, group_size: int) -> torch.Tensor:
    """The contribution of each image to the score of its group: ``A beta (dsm - ref) / K``, detached, (B,).

    Raises:
        ValueError: the error of the policy that the scores are measured against is missing.
    """
    reference_B = terms.old_B if options.use_ema_ref else terms.reference_B
    if reference_B is None:
        raise ValueError(f"DGPO needs {'old_B' if options.use_ema_ref else 'reference_B'}")
    return (terms.adv_B * options.beta * (terms.dsm_B - reference_B) / group_size).detach()


class GroupScores:
    """Collects the scores s_g of groups image by image, for one timestep.

    Args:
        group_size: K.
    """

    def __init__(self, options: DGPOOptions, group_size: int) -> None:
        self.options = options
        self.group_size = group_size
        self._group: list[torch.Tensor] = []
        self._term: list[torch.Tensor] = []

    def add(self, terms: DenoisingTerms) -> None:
        """Add a micro-batch, before the update."""
        self._group.append(terms.group_B)
        self._term.append(group_terms(terms, self.options, self.group_size))

    def totals(
        self, reduce: Reduce | None = None, slots: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and scores of the groups, (G,) each.

        Args:
            reduce: sums over ranks that hold other images of the same groups; called once.
            slots: with ``reduce``, the number of group ids in use, the same on every rank.

        Raises:
            DataError: a group does not have exactly K images, so that its score would differ.
        """
        if not self._group:
            raise DataError("scores of groups were asked for before any image was scored")
        group_N, term_N = torch.cat(self._group), torch.cat(self._term)
        ids_G, at_N = index_groups(group_N.to(term_N.device), reduce, slots)
        sums_2G = torch.zeros(2, len(ids_G), dtype=term_N.dtype, device=term_N.device)
        sums_2G.index_add_(1, at_N, torch.stack((term_N, torch.ones_like(term_N))))
        if reduce is not None:
            sums_2G = reduce(sums_2G)
        score_G, images_G = sums_2G
        present_G = images_G > 0
        check_group_sizes(ids_G[present_G], images_G[present_G], self.group_size)
        return ids_G[present_G], score_G[present_G]

    def weights(self, reduce: Reduce | None = None, slots: int | None = None) -> GroupWeights:
        """``sigmoid(s_g)`` of every group; arguments as for ``totals``."""
        ids_G, score_G = self.totals(reduce, slots)
        return GroupWeights(ids_G, score_G, score_G.sigmoid())


@dataclass(frozen=True)
class GroupWeights:
    """Ids, scores and weights of complete groups, (G,) each, ids ascending."""

    group_id_G: torch.Tensor
    score_G: torch.Tensor
    weight_G: torch.Tensor

    def of(self, group_B: torch.Tensor) -> torch.Tensor:
        """The weight of each image's group, (B,).

        Raises:
            DataError: a group has no score.
        """
        group_B = group_B.to(self.group_id_G.device)
        at_B = torch.searchsorted(self.group_id_G, group_B).clamp(max=len(self.group_id_G) - 1)
        unknown = group_B[self.group_id_G[at_B] != group_B]
        if unknown.numel():
            raise DataError(f"groups {unknown.tolist()} have no score")
        return self.weight_G[at_B]


def clip_mask(terms: DenoisingTerms, options: DGPOOptions) -> torch.Tensor:
    """Return which images have left the trust region around the moving average, bool (B,); none without
    clipping.

    Raises:
        ValueError: clipping is on without ``old_B``.
    """
    if not options.clips:
        return torch.zeros_like(terms.dsm_B, dtype=torch.bool)
    if terms.old_B is None:
        raise ValueError("clipping needs old_B, the error of the moving average")
    ratio_B = (terms.old_B - terms.dsm_B).detach().exp()
    return torch.where(terms.adv_B > 0, ratio_B > 1.0 + options.clip_high, ratio_B < 1.0 + options.clip_low)


@online_loss("DGPO")
def dgpo(
    terms: DenoisingTerms,
    options: DGPOOptions,
    images: int,
    group_size: int,
    weights: GroupWeights | Literal["stash"] | None = None,
    reduce: Reduce | None = None,
    slots: int | None = None,
) -> PolicyOut:
    """``mean_i w_g(i) A_i dsm_i + kl_beta mean_i kl_i`` with ``w_g = sigmoid(s_g)`` held constant.

    ``beta`` times its gradient is that of ``mean softplus(s_g)``, the preference loss of the group.

    Args:
        images: n, images of the optimizer step over all micro-batches and ranks (times the timesteps that
            are accumulated, if the loss is their mean).
        group_size: K.
        weights: weights of a first pass; ``"stash"`` for the loss with w = 1, whose gradient the caller
            multiplies by the weight later; ``None`` for groups that are complete here, or with ``reduce``
            over the ranks.
        reduce, slots: as for ``GroupScores.totals``.

    Returns:
        The share of this micro-batch; coefficients ``dsm`` and ``kl``. With ``"stash"`` the loss leaves out
        the KL (it takes no weight: add ``(coefficient * kl_B).sum()`` outside the stash), and the metrics
        ``dgpo_loss`` and ``loss`` are without weights too.

    Raises:
        DataError: a group is incomplete.
        NonFiniteError: a value is NaN or infinite.
    """
    clipped_B = clip_mask(terms, options)
    kind = terms.dsm_B.dtype
    found = None
    if weights is None:
        found = _weights_here(terms, options, group_size, reduce, slots)
    elif isinstance(weights, GroupWeights):
        found = weights
    elif weights != "stash":
        raise ValueError(f"weights are GroupWeights, 'stash' or None, not {weights!r}")
    weight_B = torch.ones_like(terms.adv_B) if found is None else found.of(terms.group_B)
    weight_B = weight_B.to(kind)
    require_finite("a group weight", weight_B)
    dsm_B = torch.where(clipped_B & options.clip_dsm, terms.dsm_B.detach(), terms.dsm_B)
    slope_B = (weight_B * terms.adv_B / images).detach()
    policy = (slope_B * dsm_B).sum()
    kl, coefficients = _kl(terms, options, clipped_B, images)
    coefficients["dsm"] = torch.where(clipped_B & options.clip_dsm, 0.0, slope_B)
    loss = policy if found is None or not options.kl_beta else policy + options.kl_beta * kl
    shares = {
        "dgpo_loss": policy.detach(),
        "dsm_loss": terms.dsm_B.detach().sum() / images,
        "kl_div": kl.detach(),
        "kl_loss": options.kl_beta * kl.detach(),
        "clip_ratio": clipped_B.to(kind).sum() / images,
        "loss": policy.detach() + options.kl_beta * kl.detach(),
    }
    if found is not None:
        shares["group_weight"] = weight_B.sum() / images
    return PolicyOut(loss, coefficients, shares)


def _weights_here(
    terms: DenoisingTerms, options: DGPOOptions, group_size: int, reduce: Reduce | None, slots: int | None
) -> GroupWeights:
    scores = GroupScores(options, group_size)
    scores.add(terms)
    return scores.weights(reduce, slots)


def _kl(
    terms: DenoisingTerms, options: DGPOOptions, clipped_B: torch.Tensor, images: int
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Share of the mean KL, without its strength, and its coefficient with it."""
    if terms.kl_B is None:
        if options.kl_beta:
            raise ValueError("kl_beta is above 0, and no KL was given")
        return terms.dsm_B.new_zeros(()), {}
    if options.kl_beta:
        require_gradient("the KL", terms.kl_B, terms.dsm_B)
    held_B = clipped_B & options.clip_kl
    kl = torch.where(held_B, terms.kl_B.detach(), terms.kl_B).sum() / images
    if not options.kl_beta:
        return kl, {}
    return kl, {
        "kl": torch.where(held_B, 0.0, options.kl_beta / images * torch.ones_like(terms.kl_B.detach()))
    }
