"""Advantages: how much better an image is than the others of its prompt.

Rewards of a whole rollout, N images of all ranks gathered in one place; arithmetic is float64, results are
float32 (float64 for float64 rewards). Sources: DeepSeekMath (arXiv 2402.03300), Dr. GRPO (arXiv 2503.20783)
for leaving the standard deviation out, Flow-GRPO (arXiv 2505.05470) for the standard deviation of the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from modules.objective.aggregation import check_group_sizes, index_groups
from modules.util.errors import DataError, list_offenders

Scale = Literal["group", "batch", "none"]
Combine = Literal["sum", "gdpo"]


@dataclass(frozen=True)
class AdvantageOptions:
    """Options for turning rewards into advantages.

    Args:
        scale: divide by the standard deviation of the prompt's own images, of all images (``global_std``), or
            by nothing. The subtracted mean is always that of the prompt.
        eps: added to the standard deviation, which is that of the population (divided by N, not N - 1).
        clip: advantages are clipped to [-clip, clip], or to a pair of bounds; ``None`` does not clip. After
            clipping, the advantages of a group may not quite add up to 0.
        combine: ``sum`` adds weighted rewards before anything else; ``gdpo`` standardises each reward within
            its group, adds the weighted results and standardises them over all images.
        ranked: replace each reward by its rank within the group before all of this: from 0 for the lowest to 1
            for the highest, the mean rank for equal ones. Only the order of a prompt's images then counts.
    """

    scale: Scale = "batch"
    eps: float = 1e-4
    clip: float | tuple[float, float] | None = 5.0
    combine: Combine = "sum"
    ranked: bool = False

    def __post_init__(self) -> None:
        known = (
            ("scale", self.scale, ("group", "batch", "none")),
            ("combine", self.combine, ("sum", "gdpo")),
        )
        for name, value, values in known:
            if value not in values:
                raise ValueError(f"{name} of advantages is {value!r}, not one of {values}")
        if not math.isfinite(self.eps) or self.eps <= 0:
            raise ValueError(f"eps of advantages is {self.eps!r}; it must be finite and above 0")
        low, high = self.bounds()
        if math.isnan(low) or math.isnan(high) or not low < 0 < high:
            raise ValueError(f"advantages cannot be clipped to [{low}, {high}]; 0 must lie inside")

    def bounds(self) -> tuple[float, float]:
        """The range of advantages, infinite without a clip."""
        if self.clip is None:
            return -math.inf, math.inf
        if isinstance(self.clip, tuple):
            low, high = self.clip
            return float(low), float(high)
        return -float(self.clip), float(self.clip)


@dataclass(frozen=True)
class Advantages:
    """Advantages of N images and what they came from; ``mean_G`` and ``std_G`` are of the added-up rewards, also
    where advantages are of their ranks.

    ``zero_std_ratio`` is the share of groups whose rewards are all equal; such images have advantage 0.
    """

    adv_N: torch.Tensor
    group_id_G: torch.Tensor
    mean_G: torch.Tensor
    std_G: torch.Tensor
    zero_std_ratio: float
    reward_mean: float
    reward_std: float
    clipped_ratio: float


def group_advantages(
    reward: torch.Tensor,
    group_N: torch.Tensor,
    options: AdvantageOptions | None = None,
    *,
    group_size: int | None = None,
    weights: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
) -> Advantages:
    """Advantages of the images of complete groups.

    Args:
        reward: (N,), or (R, N) for several rewards.
        group_N: int64, unique per (epoch, prompt slot).
        group_size: K; every group must have exactly this many images. ``None`` requires at least two.
        weights: one per reward, finite, not all 0; ones by default.
        names: name of each image's group in errors (uids), N of them.

    Raises:
        DataError: a reward is NaN or infinite, or a group is incomplete.
        ValueError: the weights are unusable.
    """
    options = options or AdvantageOptions()
    reward_RN = reward.detach().double().reshape(-1, reward.shape[-1])
    if group_N.shape != reward_RN.shape[1:]:
        raise ValueError(f"{tuple(group_N.shape)} group ids for rewards of shape {tuple(reward.shape)}")
    ids_G, at_N = index_groups(group_N.to(reward.device))
    _check_rewards(reward_RN, group_N, names)
    images_G = _group_sum(torch.ones_like(reward_RN[0]), at_N, len(ids_G))
    _check_groups(ids_G, images_G, at_N, group_size, names)
    weight_R = _weights(weights, len(reward_RN)).to(reward_RN.device)

    raw_N = (weight_R[:, None] * reward_RN).sum(0)
    raw_mean_G, raw_std_G = _moments(raw_N, at_N, images_G)
    reward_RN = _ranked(reward_RN, at_N, len(ids_G)) if options.ranked else reward_RN
    total_N = (weight_R[:, None] * reward_RN).sum(0)
    mean_G, std_G = _moments(total_N, at_N, images_G)
    flat_RN = torch.stack([_flat(one_N, at_N, len(ids_G)) for one_N in reward_RN])
    if options.combine == "gdpo":
        adv_N = _gdpo(reward_RN, weight_R, at_N, images_G, flat_RN, options)
        flat_N = flat_RN.all(0)
    else:
        flat_N = _flat(total_N, at_N, len(ids_G))
        adv_N = torch.where(flat_N, 0.0, _scaled(total_N, mean_G[at_N], std_G[at_N], options))
    low, high = options.bounds()
    clipped_N = (adv_N < low) | (adv_N > high)
    flat_G = _group_sum(flat_N.double(), at_N, len(ids_G)) > 0
    return Advantages(
        adv_N=adv_N.clamp(low, high).to(torch.float64 if reward.dtype == torch.float64 else torch.float32),
        group_id_G=ids_G,
        mean_G=raw_mean_G,
        std_G=raw_std_G,
        zero_std_ratio=float(flat_G.double().mean()),
        reward_mean=float(raw_N.mean()),
        reward_std=float(raw_N.std(correction=0)),
        clipped_ratio=float(clipped_N.double().mean()),
    )


def _scaled(
    total_N: torch.Tensor, mean_N: torch.Tensor, std_N: torch.Tensor, options: AdvantageOptions
) -> torch.Tensor:
    """Distance from the mean of the group, divided as ``options.scale`` says; (N,)."""
    adv_N = total_N - mean_N
    if options.scale == "group":
        return adv_N / (std_N + options.eps)
    if options.scale == "batch":
        return adv_N / (total_N.std(correction=0) + options.eps)
    return adv_N


def _gdpo(
    reward_RN: torch.Tensor,
    weight_R: torch.Tensor,
    at_N: torch.Tensor,
    images_G: torch.Tensor,
    flat_RN: torch.Tensor,
    options: AdvantageOptions,
) -> torch.Tensor:
    """Standardise within the group, weigh, add up, standardise over all images; (N,)."""
    summed_N = torch.zeros_like(reward_RN[0])
    for one_N, weight, flat_N in zip(reward_RN, weight_R, flat_RN, strict=True):
        mean_G, std_G = _moments(one_N, at_N, images_G)
        standard_N = (one_N - mean_G[at_N]) / (std_G + options.eps)[at_N]
        summed_N = summed_N + weight * torch.where(flat_N, 0.0, standard_N)
    spread = summed_N.std(correction=0) + options.eps
    return torch.where(flat_RN.all(0), 0.0, (summed_N - summed_N.mean()) / spread)


def _ranked(reward_RN: torch.Tensor, at_N: torch.Tensor, groups: int) -> torch.Tensor:
    """Each reward's rank within its group, from 0 to 1; equal ones share their mean rank. (R, N)"""
    rank_RN = torch.empty_like(reward_RN)
    for group in range(groups):
        here_K = torch.nonzero(at_N == group).flatten()
        value_RK = reward_RN[:, here_K]
        below_RK = (value_RK[:, :, None] > value_RK[:, None]).sum(2)
        equal_RK = (value_RK[:, :, None] == value_RK[:, None]).sum(2) - 1
        rank_RN[:, here_K] = (below_RK + equal_RK / 2).to(reward_RN) / (len(here_K) - 1)
    return rank_RN


def _group_sum(value_N: torch.Tensor, at_N: torch.Tensor, groups: int) -> torch.Tensor:
    return torch.zeros(groups, dtype=value_N.dtype, device=value_N.device).index_add_(0, at_N, value_N)


def _moments(
    value_N: torch.Tensor, at_N: torch.Tensor, images_G: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of each group."""
    mean_G = _group_sum(value_N, at_N, len(images_G)) / images_G
    square_G = _group_sum((value_N - mean_G[at_N]).square(), at_N, len(images_G))
    return mean_G, (square_G / images_G).sqrt()


def _flat(value_N: torch.Tensor, at_N: torch.Tensor, groups: int) -> torch.Tensor:
    """Return whether all values of an image's group are equal, (N,), unaffected by the rounding of a mean."""
    top_G = torch.full((groups,), -math.inf, dtype=value_N.dtype, device=value_N.device)
    top_G = top_G.scatter_reduce(0, at_N, value_N, "amax")
    low_G = torch.full_like(top_G, math.inf).scatter_reduce(0, at_N, value_N, "amin")
    return (top_G == low_G)[at_N]


def _weights(weights: Sequence[float] | None, rewards: int) -> torch.Tensor:
    if weights is None:
        return torch.ones(rewards, dtype=torch.float64)
    if len(weights) != rewards:
        raise ValueError(f"{len(weights)} reward weights for {rewards} rewards")
    if not all(math.isfinite(weight) for weight in weights) or not any(weights):
        raise ValueError(f"reward weights {list(weights)} are not finite, or all 0")
    return torch.tensor(list(weights), dtype=torch.float64)


def _check_rewards(reward_RN: torch.Tensor, group_N: torch.Tensor, names: Sequence[str] | None) -> None:
    bad = torch.nonzero(~reward_RN.isfinite()).tolist()
    if bad:
        lines = [
            f"reward {r} of image {i} ({names[i] if names else f'group {int(group_N[i])}'}): "
            f"{float(reward_RN[r, i])}"
            for r, i in bad
        ]
        raise DataError(f"rewards that are NaN or infinite:\n{list_offenders(lines)}")


def _check_groups(
    ids_G: torch.Tensor,
    images_G: torch.Tensor,
    at_N: torch.Tensor,
    group_size: int | None,
    names: Sequence[str] | None,
) -> None:
    if group_size is not None and group_size < 2:
        raise ValueError(f"{group_size} image per prompt has nothing to be compared with")
    named = None
    if names is not None:
        named = [names[int(torch.nonzero(at_N == i)[0])] for i in range(len(ids_G))]
    if group_size is not None:
        check_group_sizes(ids_G, images_G, group_size, named)
        return
    alone = torch.nonzero(images_G < 2).flatten().tolist()
    if alone:
        lines = [named[i] if named else f"group {int(ids_G[i])}" for i in alone]
        raise DataError(
            f"groups of a single image, with nothing to compare it with:\n{list_offenders(lines)}"
        )
