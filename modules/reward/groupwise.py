"""Rewards that see a whole group, and pairwise comparisons converted to one number per image."""

from __future__ import annotations

from abc import abstractmethod
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from modules.reward.base import Kind, Metadata, Reward, RewardBatch, RewardError
from modules.util.errors import ConfigError

RIDGE = 0.01
"""Weight of the penalty that keeps an image that won or lost everything at a finite strength."""

Method = Literal["win_rate", "bradley_terry"]


class GroupwiseReward(Reward):
    """Scores the images of one prompt against each other. Called only with complete groups."""

    kind: Kind = "groupwise"

    @abstractmethod
    def _score_group(self, prompt: str, images_KCHW: Tensor, metadata: list[Metadata]) -> Tensor:
        """(K,) for the K images of one prompt."""

    def _score(self, batch: RewardBatch) -> Tensor:
        check_groups(batch, self.name)
        scores_B = torch.zeros(len(batch))
        for group in batch.group_ids():
            index = batch.members(group)
            part = batch.select(index)
            found_K = self._score_group(part.prompts[0], part.images_BCHW, part.metadata)
            if found_K.shape != (len(index),):
                raise RewardError(
                    f"reward {self.name!r} answered {tuple(found_K.shape)} for a group of {len(index)}"
                )
            scores_B[index] = found_K.detach().float().cpu()
        return scores_B


def check_groups(batch: RewardBatch, name: str) -> None:
    """Check that every group has one prompt, at least two images, and its full size if known.

    Raises:
        ConfigError: a group does not. The message names the first.
    """
    for group in batch.group_ids():
        index = batch.members(group)
        if len({batch.prompts[i] for i in index}) > 1:
            raise ConfigError(f"reward {name!r}: the images of group {group} have different prompts")
        if len(index) < 2:
            raise ConfigError(
                f"reward {name!r} compares images of one prompt, group {group} has {len(index)}"
            )
        if batch.group_size is not None and len(index) != batch.group_size:
            raise ConfigError(
                f"reward {name!r} needs whole groups: group {group} has {len(index)} of "
                f"{batch.group_size} images",
                hint="score only after all images of a prompt are there",
            )


class PairwiseReward(GroupwiseReward):
    """Estimates how likely one image is better than another. Within a group, every image is compared with
    every other.

    Both orders are evaluated and averaged, so that a position bias cancels out. ``win_rate`` gives the mean
    chance of winning against the others; ``bradley_terry`` fits strengths (mean 0) whose differences are log
    odds.
    """

    kind: Kind = "pairwise"
    method: Method = "win_rate"

    @abstractmethod
    def _compare(
        self, prompts: list[str], first_PCHW: Tensor, second_PCHW: Tensor, metadata: list[Metadata]
    ) -> Tensor:
        """(P,) chance in [0, 1] that the first image is better; ``metadata`` is the first image's."""

    def _score_group(self, prompt: str, images_KCHW: Tensor, metadata: list[Metadata]) -> Tensor:
        pairs = list(combinations(range(len(images_KCHW)), 2))
        first = [i for i, _ in pairs] + [j for _, j in pairs]
        second = [j for _, j in pairs] + [i for i, _ in pairs]
        chance_2P = self._compare(
            [prompt] * len(first), images_KCHW[first], images_KCHW[second], [metadata[i] for i in first]
        )
        if chance_2P.shape != (len(first),):
            raise RewardError(
                f"reward {self.name!r} answered {tuple(chance_2P.shape)} for {len(first)} comparisons"
            )
        chance_2P = chance_2P.detach().to("cpu", torch.float64)
        if not bool(((chance_2P >= 0) & (chance_2P <= 1)).all()):
            raise RewardError(f"reward {self.name!r} returned a probability outside [0, 1]")
        won_P = (chance_2P[: len(pairs)] + 1 - chance_2P[len(pairs) :]) / 2
        chance_KK = torch.full((len(images_KCHW), len(images_KCHW)), 0.5, dtype=torch.float64)
        for (i, j), chance in zip(pairs, won_P, strict=True):
            chance_KK[i, j], chance_KK[j, i] = chance, 1 - chance
        return win_rate(chance_KK) if self.method == "win_rate" else bradley_terry(chance_KK)


def win_rate(chance_KK: Tensor) -> Tensor:
    """Mean chance of each image against the others. The diagonal is ignored."""
    count = len(chance_KK)
    return (chance_KK.sum(dim=1) - chance_KK.diagonal()) / (count - 1)


def bradley_terry(chance_KK: Tensor, ridge: float = RIDGE, rounds: int = 100) -> Tensor:
    """Strengths s (mean 0) with chance_ij close to sigmoid(s_i - s_j).

    Maximises sum over pairs of p_ij log sigmoid(s_i - s_j) + p_ji log sigmoid(s_j - s_i) minus
    ridge/2 |s|^2 by Newton steps, halved if a full step decreases it.

    Raises:
        RewardError: no convergence (does not happen for chances in [0, 1] and a positive ridge).
    """
    chance_KK = chance_KK.to(torch.float64)
    count = len(chance_KK)
    eye = torch.eye(count, dtype=torch.float64)
    off = 1 - eye

    def value(strength_K: Tensor) -> Tensor:
        difference = strength_K[:, None] - strength_K[None, :]
        fit = (off * chance_KK * torch.nn.functional.logsigmoid(difference)).sum()
        return fit - ridge / 2 * strength_K.square().sum()

    strength_K = torch.zeros(count, dtype=torch.float64)
    for _ in range(rounds):
        expected = torch.sigmoid(strength_K[:, None] - strength_K[None, :])
        gradient_K = (off * (chance_KK - expected)).sum(dim=1) - ridge * strength_K
        if gradient_K.abs().max() < 1e-10:
            return strength_K - strength_K.mean()
        spread = off * expected * (1 - expected)
        curvature = torch.diag(spread.sum(dim=1)) - spread + ridge * eye
        step_K = torch.linalg.solve(curvature, gradient_K)
        before, size = value(strength_K), 1.0
        while value(strength_K + size * step_K) < before and size > 1e-6:
            size /= 2
        strength_K = strength_K + size * step_K
    raise RewardError("the strengths of a group could not be fitted")
