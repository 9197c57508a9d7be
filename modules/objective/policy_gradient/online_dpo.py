"""Online DPO: pairs are formed by the rewards of a prompt's own images; any preference loss can then be used."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from modules.objective.aggregation import index_groups
from modules.objective.policy_gradient.base import PolicyOut, online_loss, require_finite, require_wide
from modules.objective.preference import LossOut, ObjectiveOptions, PairScores, get_preference_loss

Pairing = Literal["best_worst", "all"]


@dataclass(frozen=True)
class RankedPairs:
    """Pairs of images as indices among N, int64 (P,) each, and the number of groups without a pair."""

    chosen_P: torch.Tensor
    rejected_P: torch.Tensor
    skipped_groups: int

    def __len__(self) -> int:
        return len(self.chosen_P)


def rank_pairs(
    reward_N: torch.Tensor, group_N: torch.Tensor, pairing: Pairing = "best_worst", min_gap: float = 0.0
) -> RankedPairs:
    """Pairs within groups whose rewards differ by more than ``min_gap``; equal rewards never make a pair.

    Args:
        pairing: the best and the worst image of a group (the first among equals), or every two images.

    Raises:
        NonFiniteError: a reward is NaN or infinite.
    """
    if pairing not in ("best_worst", "all"):
        raise ValueError(f"pairing is {pairing!r}, not 'best_worst' or 'all'")
    if not math.isfinite(min_gap) or min_gap < 0:
        raise ValueError(f"min_gap is {min_gap!r}; it must be finite and >= 0")
    require_finite("a reward", reward_N)
    ids_G, at_N = index_groups(group_N)
    rewards = reward_N.tolist()
    members: list[list[int]] = [[] for _ in range(len(ids_G))]
    for image, group in enumerate(at_N.tolist()):
        members[group].append(image)
    pairs: list[tuple[int, int]] = []
    skipped = 0
    for images in members:
        ranked = sorted(images, key=lambda image: -rewards[image])
        if pairing == "best_worst":
            worst = min(images, key=lambda image: rewards[image])
            candidates = [(ranked[0], worst)]
        else:
            candidates = [(a, b) for i, a in enumerate(ranked) for b in ranked[i + 1 :]]
        found = [(a, b) for a, b in candidates if rewards[a] - rewards[b] > min_gap]
        skipped += not found
        pairs += found
    pairs_P2 = torch.tensor(pairs, dtype=torch.int64, device=reward_N.device).reshape(-1, 2)
    return RankedPairs(pairs_P2[:, 0], pairs_P2[:, 1], skipped)


@online_loss("ONLINE_DPO")
def online_dpo(
    dsm_B: torch.Tensor,
    reference_B: torch.Tensor,
    pairs: RankedPairs,
    options: ObjectiveOptions,
    total_pairs: int,
    objective: str = "SIGMOID",
) -> PolicyOut:
    """Mean preference loss of pairs, on scores that are minus the error of a prediction at one timestep.

    Args:
        dsm_B: mean squared errors of the policy, fp32, with gradient; both sides of a pair share noise and
            timestep. B images hold both sides of every pair.
        reference_B: those of the reference.
        pairs: indices among the B images.
        total_pairs: pairs of the optimizer step over all micro-batches and ranks.

    Returns:
        The share of this micro-batch; coefficient ``dsm``, which suffices for a second pass image by image.

    Raises:
        ValueError: fewer than one pair in the step.
    """
    for name, value in (("dsm_B", dsm_B), ("reference_B", reference_B)):
        require_wide(name, value)
        require_finite(name, value)
    if total_pairs < 1:
        raise ValueError(f"{total_pairs} pairs in the optimizer step")
    loss = _loss(dsm_B, reference_B, pairs, options, objective).loss_B.sum() / total_pairs
    with torch.enable_grad():
        leaf_B = dsm_B.detach().requires_grad_()
        out = _loss(leaf_B, reference_B, pairs, options, objective)
        (slope_B,) = torch.autograd.grad(out.loss_B.sum() / total_pairs, leaf_B)
    require_finite("an online preference loss", out.loss_B)
    shares = {
        "loss": out.loss_B,
        "raw_loss": out.raw_loss_B,
        "margin": out.margin_B,
        "chosen_reward": out.chosen_reward_B,
        "rejected_reward": out.rejected_reward_B,
        "accuracy": (out.margin_B > 0).to(dsm_B.dtype),
    }
    shares = {name: value.detach().sum() / total_pairs for name, value in shares.items()}
    return PolicyOut(loss, {"dsm": slope_B}, shares)


def _loss(
    dsm_B: torch.Tensor,
    reference_B: torch.Tensor,
    pairs: RankedPairs,
    options: ObjectiveOptions,
    objective: str,
) -> LossOut:
    chosen_P, rejected_P = pairs.chosen_P, pairs.rejected_P
    policy_B, frozen_B = -dsm_B, -reference_B.detach()
    scores = PairScores(policy_B[chosen_P], policy_B[rejected_P], frozen_B[chosen_P], frozen_B[rejected_P])
    return get_preference_loss(objective)(scores, options)
