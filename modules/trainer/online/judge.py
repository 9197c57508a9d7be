"""Computes rewards and advantages from the images of all processes, with the same result in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from modules.model.memory import give_back
from modules.model.Model import Model
from modules.objective.advantages import group_advantages
from modules.reward.base import RewardBatch
from modules.reward.combine import Combined, RewardSet, Scores
from modules.rollout.generate import RolloutSource
from modules.rollout.Rollouts import Rollouts
from modules.trainer.distributed import Processes, choose_device
from modules.trainer.online.RewardWatch import RewardWatch
from modules.trainer.online.settings import (
    advantage_options,
    asks_person,
    needs_whole_groups,
    reward_set,
)
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import blamed_on


@dataclass(frozen=True)
class Judged:
    """Advantages and rewards of this process's images.

    Args:
        adv_N, reward_N: float32; 0 where not kept.
        kept_N: bool, which images are trained on.
        facts: metrics to log, over all processes.
    """

    adv_N: torch.Tensor
    reward_N: torch.Tensor
    kept_N: torch.Tensor
    facts: dict[str, float]


class Judge:
    """Scores the images of an epoch and compares those of each prompt.

    Args:
        model: the model, which makes room for reward models if requested.
    """

    def __init__(self, config: TrainConfig, model: Model, processes: Processes) -> None:
        self._config, self._model, self._processes = config, model, processes
        self.rewards: RewardSet = reward_set(config)
        self._options = advantage_options(config)
        self._loaded = False
        self._watch = RewardWatch()

    def warnings(self) -> list[str]:
        """Findings about the scores since the last call."""
        return self._watch.warnings()

    def load(self) -> None:
        """Load the rewards' weights, so that errors the user can fix appear now, not after a rollout."""
        device = "cpu" if self._config.rlhf_reward_swap else self._device()
        self.rewards.load(device)
        self._loaded = True

    def _device(self) -> torch.device:
        return reward_device(self._config, self._processes)

    def judge(
        self,
        rollouts: Rollouts,
        rgb_NCHW: torch.Tensor,
        check: Callable[[], None] | None = None,
        edited: Sequence[RolloutSource | None] = (),
    ) -> Judged:
        """Score, gather, combine and compare the images.

        Args:
            check: called before anything is recorded; raises to cancel.
            edited: of each image, what it was made from; empty for nothing of any.

        Raises:
            RewardError: a reward failed, or every group of the epoch is skipped.
            DataError: a reward is NaN or infinite, or a group is incomplete.
        """
        scores, ids = self._scores(rollouts, rgb_NCHW, list(edited) or [None] * len(rollouts))
        if check is not None:
            check()
        rows = self._processes.gather((ids, scores.raw_RN, scores.kept_N, scores.dropped, sorted(scores.unjudged)))
        found = {
            one: (raw_RN[:, i], bool(kept_N[i]))
            for names, raw_RN, kept_N, *_ in rows
            for i, one in enumerate(names)
        }
        everybody = self._processes.gather((list(rollouts.ids), rollouts.group_N.tolist()))
        order = sorted(
            (group, one) for names, groups in everybody for one, group in zip(names, groups, strict=True)
        )
        names = [one for _, one in order]
        if len(set(names)) < len(names):
            raise RuntimeError("two processes made the same image")
        group_A = torch.tensor([group for group, _ in order], dtype=torch.int64)
        raw_RA = torch.stack([found[one][0] for one in names], 1)
        unjudged = {group for *_, groups in rows for group in groups}
        kept_A = torch.tensor([found[one][1] and group not in unjudged for group, one in order])
        if unjudged and not kept_A.any():
            return _nothing(len(rollouts), len(set(group_A.tolist())))
        dropped = {group: why for *_, dropped, _ in rows for group, why in dropped.items()}
        made = self.rewards.combine(raw_RA, kept_A, group_A, dropped)
        judged, all_equal = self._compare(rollouts, names, group_A, made)
        ids = [one for one, kept in zip(names, made.kept_N.tolist(), strict=True) if kept]
        self._watch.see(self.rewards.names, raw_RA[:, made.kept_N], ids, all_equal)
        return judged

    def _compare(
        self,
        rollouts: Rollouts,
        names: list[str],
        group_A: torch.Tensor,
        made: Combined,
    ) -> tuple[Judged, bool]:
        """Advantages of this process's images, and whether all images of every prompt are equally good."""
        kept_A = made.kept_N
        compared = group_advantages(
            made.terms_RN[:, kept_A],
            group_A[kept_A],
            self._options,
            group_size=self._config.rlhf_group_size,
            weights=self.rewards.weights,
            names=[one for one, kept in zip(names, kept_A.tolist(), strict=True) if kept],
        )
        adv_A = torch.zeros(len(names))
        adv_A[kept_A] = compared.adv_N.float()
        trained_A = kept_A & self._teaches(adv_A, group_A)
        place = {one: i for i, one in enumerate(names)}
        mine = torch.tensor([place[one] for one in rollouts.ids], dtype=torch.int64)
        facts = {f"reward/{name}": value for name, value in made.stats.items() if name != "dropped_groups"}
        facts |= {
            "rl/dropped_groups": made.stats["dropped_groups"],
            "rl/zero_std_ratio": compared.zero_std_ratio,
            "rl/reward_mean": compared.reward_mean,
            "rl/reward_std": compared.reward_std,
            "rl/advantage_clipped": compared.clipped_ratio,
            "rl/images": float(trained_A.sum()),
        }
        judged = Judged(adv_A[mine], made.total_N[mine].float(), trained_A[mine], facts)
        return judged, compared.zero_std_ratio == 1.0

    def _teaches(self, adv_A: torch.Tensor, group_A: torch.Tensor) -> torch.Tensor:
        """Images worth training on. If only whole groups can be averaged, all or none of a group."""
        skips = self._config.rlhf_skip_zero_advantage
        if not (skips or asks_person(self._config)):
            return torch.ones_like(group_A, dtype=torch.bool)
        moving_A = adv_A != 0
        counted = self._config.rlhf_mode.coupled and self._config.rlhf_count_skipped
        if skips and (counted or not needs_whole_groups(self._config)):
            return moving_A
        # equal votes teach nothing, not even to stay unchanged
        alive = set(group_A[moving_A].tolist())
        return torch.tensor([group in alive for group in group_A.tolist()], dtype=torch.bool)

    # -- asking -----------------------------------------------------------------------------------------------

    def _scores(
        self, rollouts: Rollouts, rgb_NCHW: torch.Tensor, edited: list[RolloutSource | None]
    ) -> tuple[Scores, list[str]]:
        """Scores of the images this process has to judge, and their ids."""
        ids, prompts = list(rollouts.ids), list(rollouts.prompts)
        group_N = rollouts.group_N
        if self.rewards.needs_groups and self._processes.world_size > 1:
            ids, prompts, group_N, rgb_NCHW, edited = self._whole_groups(rollouts, rgb_NCHW, edited)
        size = self._config.rlhf_group_size if self.rewards.needs_groups else None
        metadata = [{"id": one} for one in ids]
        sources = [() if one is None else one.pixels for one in edited]
        names = [() if one is None else one.names for one in edited]
        batch = RewardBatch(rgb_NCHW.float(), prompts, group_N, metadata, size, sources, names)  # type: ignore[arg-type]
        if not len(batch):
            return Scores(torch.zeros(len(self.rewards.names), 0), torch.zeros(0, dtype=torch.bool)), ids
        if not self._loaded:
            self.load()
        if not self._config.rlhf_reward_swap:
            return self.rewards.score(batch), ids
        denoiser = self._model.spec.denoiser
        self._model.to(denoiser, "cpu")
        give_back(self._processes.device)
        try:
            self.rewards.to(self._device())
            return self.rewards.score(batch), ids
        finally:
            self.rewards.to("cpu")
            give_back(self._device())
            self._model.to(denoiser, self._processes.device)

    def _whole_groups(
        self, rollouts: Rollouts, rgb_NCHW: torch.Tensor, edited: list[RolloutSource | None]
    ) -> tuple[list[str], list[str], torch.Tensor, torch.Tensor, list[RolloutSource | None]]:
        """All images of every W-th group, gathered from all processes."""
        own = (list(rollouts.ids), list(rollouts.prompts), rollouts.group_N.tolist(), rgb_NCHW)
        parts = self._processes.gather((*own, *_sendable(edited)))
        world, rank = self._processes.world_size, self._processes.rank
        picked = sorted(
            (
                (group, one, prompt, image, source)
                for names, prompts, groups, images, *before in parts
                for one, prompt, group, image, source in zip(
                    names, prompts, groups, images, _received(*before), strict=True
                )
                if group % world == rank
            ),
            key=lambda entry: entry[:2],
        )
        ids, prompts = [entry[1] for entry in picked], [entry[2] for entry in picked]
        group_N = torch.tensor([entry[0] for entry in picked], dtype=torch.int64)
        images = [entry[3] for entry in picked]
        stacked_NCHW = torch.stack(images) if images else rgb_NCHW[:0]
        return ids, prompts, group_N, stacked_NCHW, [entry[4] for entry in picked]


def _nothing(images: int, groups: int) -> Judged:
    """The result for images that nobody judged: they are not trained on."""
    facts = {"rl/dropped_groups": float(groups), "rl/images": 0.0}
    return Judged(torch.zeros(images), torch.zeros(images), torch.zeros(images, dtype=torch.bool), facts)


def _sendable(edited: Sequence[RolloutSource | None]) -> tuple[list[Any], list[int]]:
    """Return the sources of images as data for other processes: each source once, and its index for each image.
    """
    different = list(dict.fromkeys(edited))
    data = [None if one is None else (one.pixels, one.names) for one in different]
    return data, [different.index(one) for one in edited]


def _received(data: list[Any], indices: list[int]) -> list[RolloutSource | None]:
    """The inverse of ``_sendable``."""
    sources = [None if one is None else RolloutSource(tuple(one[0]), tuple(one[1])) for one in data]
    return [sources[index] for index in indices]


def reward_device(config: TrainConfig, processes: Processes) -> torch.device:
    """The device of the rewards.

    Raises:
        ConfigError: this machine does not have it.
    """
    name = config.rlhf_reward_device
    if name == "auto":
        return processes.device
    with blamed_on("rlhf_reward_device"):
        return choose_device(name, processes.local_rank)


def member_id(epoch: int, group: int, member: int) -> str:
    """Id of an image, unique in the run. Sorts by member within its group."""
    return f"{epoch}/{group}/{member:05d}"


def all_different(parts: Sequence[Sequence[int]]) -> bool:
    """Return whether all numbers are different."""
    flat = [one for part in parts for one in part]
    return len(set(flat)) == len(flat)
