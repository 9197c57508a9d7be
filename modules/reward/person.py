"""A person as the reward: the run shows the images of each prompt and waits for votes.

Votes compare the images of one prompt: a reward is the share of the other images that an image beats minus the share
that beats it. So the rewards of a prompt add up to 0, and a prompt whose images are all rated the same teaches
nothing. A taste head, learned from the votes of earlier epochs, may vote on the other prompts. There a reward is the
mean of 2 p - 1, with p the head's probability of beating each other image, which is near 0 where the head is not
certain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from modules.reward.base import REWARDS, Kind, Reward, RewardBatch
from modules.reward.frozen_features import FeatureOptions, FrozenFeatures
from modules.reward.groupwise import check_groups
from modules.reward.taste_head import Answers, TasteHead, fit_taste
from modules.util.errors import ConfigError

LEAST_COMPARISONS = 20
"""Minimum number of comparisons before the head votes."""
MOST_COMPARISONS = 1000
"""Number of latest comparisons from which the head learns, which takes time cubic in it."""
IN_A_BATCH = 8


@dataclass(frozen=True)
class Shown:
    """All images of one prompt.

    Args:
        epoch: epoch in which they were made.
        group: number of the prompt group, unique in the run.
        images_KCHW: float32, values in [0, 1].
        sources: what the prompt edits, (3, h, w) uint8 each.
        source_names: their names.
    """

    epoch: int
    group: int
    prompt: str
    images_KCHW: Tensor
    sources: tuple[Tensor, ...] = ()
    source_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judged:
    """Images of one prompt and how each was rated: 2 the best, 1 liked, 0 seen, -1 disliked."""

    key: str
    prompt: str
    images_KCHW: Tensor
    levels: tuple[int, ...]


class Desk(Protocol):
    """The interface through which a person is asked."""

    def show(self, shown: Shown) -> None:
        """Show images to the person, once; returns immediately."""

    def wait(self, groups: Sequence[int]) -> dict[int, tuple[int, ...] | None]:
        """Wait for the levels of the images of these groups; ``None`` for a group that was dropped."""

    def earlier(self, epoch: int) -> list[Judged]:
        """The judgements of the epochs before ``epoch``, oldest first."""

    def voted(self, group: int, levels: Sequence[int] | None, teaches: bool) -> None:
        """Report that a group was counted; ``levels`` is ``None`` if the head voted."""


@REWARDS.register("person")
class PersonReward(Reward):
    """You: the run shows the images of each prompt and waits for your votes."""

    kind: Kind = "groupwise"
    needs = "your votes while it trains"
    allow_black = True

    def __init__(self) -> None:
        super().__init__()
        self._desk: Desk | None = None
        self._share = 1.0
        self._features: FrozenFeatures | None = None
        self._rows: dict[str, Tensor] = {}
        self._head: tuple[int, TasteHead | None] = (-1, None)
        self._shown: dict[int, Shown] = {}
        self._unanswered: frozenset[int] = frozenset()

    def unjudged(self) -> frozenset[int]:
        """Groups that nobody voted on in time."""
        return self._unanswered

    def ask_through(self, desk: Desk, share: float, features: FeatureOptions | None) -> None:
        """Set the desk through which the person is asked.

        Args:
            share: share of the groups that the person sees, above 0 and up to 1.
            features: features of the head that votes on the rest; needed if ``share`` is below 1.
        """
        self._desk, self._share = desk, share
        self._features = FrozenFeatures(features, IN_A_BATCH) if share < 1 and features is not None else None

    def load(self, device: torch.device | str = "cpu") -> None:
        super().load(device)
        self._at_desk()
        if self._features is not None:
            self._features.load(device)

    def unload(self) -> None:
        if self._features is not None:
            self._features.unload()

    def to(self, device: torch.device | str) -> None:
        super().to(device)
        if self._features is not None:
            self._features.to(device)

    def _at_desk(self) -> Desk:
        if self._desk is None:
            raise ConfigError(
                "votes of a person are counted only in a training run",
                self.name,
                "choose another reward here",
            )
        return self._desk

    def offer(self, shown: Shown) -> None:
        """Show images as soon as they are made, while others are still being made."""
        if shown.group not in self._shown:
            self._shown[shown.group] = shown
            if self._is_for_person(shown):
                self._at_desk().show(shown)

    def _is_for_person(self, shown: Shown) -> bool:
        """Return whether the person sees a group: an evenly spread share of them, and all until there is a head.
        """
        due = math.floor((shown.group + 1) * self._share + 1e-9) > math.floor(
            shown.group * self._share + 1e-9
        )
        return due or self._head_of(shown.epoch) is None

    def _score(self, batch: RewardBatch) -> Tensor:
        check_groups(batch, self.name)
        desk, found_B = self._at_desk(), torch.zeros(len(batch))
        shown, self._shown = self._shown, {}
        groups = batch.group_ids()
        for group in groups:
            index = _members(batch, group)
            epoch = int(str(batch.metadata[index[0]]["id"]).partition("/")[0])
            self._shown[group] = shown.get(group) or Shown(
                epoch, group, batch.prompts[index[0]], batch.images_BCHW[index],
                batch.sources[index[0]], batch.source_names[index[0]],
            )  # fmt: skip
            if group not in shown and self._is_for_person(self._shown[group]):
                desk.show(self._shown[group])
        asked = [one for one in groups if self._is_for_person(self._shown[one])]
        answers = desk.wait(asked)
        self._unanswered = frozenset(group for group, levels in answers.items() if levels is None)
        for group in groups:
            index = _members(batch, group)
            levels = answers.get(group)
            if group not in answers:
                found_B[index] = self._by_head(self._shown[group])
                desk.voted(group, None, True)
                continue
            if levels is not None:
                found_B[index] = centred_ranks(levels)
            desk.voted(group, levels or (), bool(found_B[index].any()))
        self._shown = {}
        return found_B

    # -- the head ----------------------------------------------------------------------------------------------

    def _by_head(self, shown: Shown) -> Tensor:
        head = self._head_of(shown.epoch)
        assert head is not None and self._features is not None
        count = len(shown.images_KCHW)
        rows_KD = self._features(shown.images_KCHW, [shown.prompt] * count)
        pairs_Q2 = torch.combinations(torch.arange(count))
        mean_Q, variance_Q = head.differ(rows_KD, pairs_Q2)
        return expected_ranks(mean_Q, variance_Q, pairs_Q2, count)

    def _head_of(self, epoch: int) -> TasteHead | None:
        """The head learned from the votes before an epoch; ``None`` while there are too few."""
        if self._features is None:
            return None
        if self._head[0] != epoch:
            self._head = epoch, self._learn(self._at_desk().earlier(epoch))
        return self._head[1]

    def _learn(self, judged: Sequence[Judged]) -> TasteHead | None:
        assert self._features is not None
        rows: list[Tensor] = []
        prompts: list[str] = []
        better: list[int] = []
        worse: list[int] = []
        for one in judged:
            if one.key not in self._rows:
                count = len(one.images_KCHW)
                self._rows[one.key] = self._features(one.images_KCHW, [one.prompt] * count)
            first = len(prompts)
            rows.append(self._rows[one.key])
            prompts += [one.prompt] * len(one.levels)
            for i, high in enumerate(one.levels):
                for j, low in enumerate(one.levels):
                    if high > low:
                        better.append(first + i)
                        worse.append(first + j)
        if len(better) < LEAST_COMPARISONS:
            return None
        better, worse = better[-MOST_COMPARISONS:], worse[-MOST_COMPARISONS:]
        answers = Answers(
            torch.tensor(better), torch.tensor(worse), torch.ones(len(better), dtype=torch.float64)
        )
        return fit_taste(torch.cat(rows), self._features.parts, answers, prompts)


def _members(batch: RewardBatch, group: int) -> list[int]:
    """Indices of the images of a group in the order in which they are shown, which is that of their ids. Processes may
    have made them in another one.
    """
    return sorted(batch.members(group), key=lambda one: str(batch.metadata[one]["id"]))


def centred_ranks(levels: Sequence[int]) -> Tensor:
    """Images beaten minus images lost to, divided by the number of others; float32 (K,) with sum 0."""
    level_K = torch.tensor(levels, dtype=torch.float32)
    beats_KK = torch.sign(level_K[:, None] - level_K[None, :])
    return beats_KK.sum(dim=1) / (len(levels) - 1)


def expected_ranks(mean_Q: Tensor, variance_Q: Tensor, pairs_Q2: Tensor, count: int) -> Tensor:
    """``centred_ranks`` of uncertain differences: the mean of 2 p - 1 over the others, float32 (K,).

    p is the probability that the first of a pair is preferred: a logistic function of a Gaussian difference, by the
    approximation of MacKay (1992), sigmoid(mean / sqrt(1 + pi variance / 8)).
    """
    p_Q = torch.sigmoid(mean_Q / (1 + math.pi * variance_Q / 8).sqrt())
    made_K = torch.zeros(count, dtype=torch.float64)
    made_K.index_add_(0, pairs_Q2[:, 0], 2 * p_Q - 1)
    made_K.index_add_(0, pairs_Q2[:, 1], 1 - 2 * p_Q)
    return (made_K / (count - 1)).float()
