"""The images of an epoch of online training with their advantages, and the optimizer steps made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from modules.dataLoader.BaseDataLoader import AccumulationGroup
from modules.dataLoader.samplers import Step
from modules.rollout.Rollouts import Rollouts
from modules.trainer.online.step_plan import PlannedStep
from modules.util.errors import DataError

_OWN = "own."


@dataclass(frozen=True)
class OnlineBatch:
    """Images with their advantages: a whole epoch of one process, or a micro-batch.

    Args:
        rollouts: the images, on the CPU.
        adv_B: float32, advantage of each image over the others of its prompt.
        reward_B: float32, weighted reward.
        place_B: int64, index among the images of the epoch in this process.
        means_BSChw: means of the trained steps when the images were made, for regulated ratios.
    """

    rollouts: Rollouts
    adv_B: torch.Tensor
    reward_B: torch.Tensor
    place_B: torch.Tensor
    means_BSChw: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.rollouts)

    def select(self, index: Sequence[int]) -> OnlineBatch:
        """The images at ``index``, in that order."""
        places = torch.as_tensor(list(index), dtype=torch.int64)
        means = self.means_BSChw
        return OnlineBatch(
            self.rollouts.select(places),
            self.adv_B[places],
            self.reward_B[places],
            self.place_B[places],
            None if means is None else means[places],
        )

    def with_old(self, logp_BS: torch.Tensor, means_BSChw: torch.Tensor | None) -> OnlineBatch:
        """A copy with other log-probabilities from before the update."""
        rollouts = replace(self.rollouts, logp_NS=logp_BS)
        return replace(self, rollouts=rollouts, means_BSChw=means_BSChw)

    # -- backups ------------------------------------------------------------------------------------------

    def to_tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by name."""
        own = {"adv": self.adv_B, "reward": self.reward_B, "place": self.place_B, "means": self.means_BSChw}
        return self.rollouts.to_tensors() | {f"{_OWN}{k}": v for k, v in own.items() if v is not None}

    @staticmethod
    def from_tensors(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any]) -> OnlineBatch:
        """The inverse of ``to_tensors`` and of the rollouts' ``metadata``. Raises ``DataError`` if they do
        not match.
        """
        own = {name.removeprefix(_OWN): value for name, value in tensors.items() if name.startswith(_OWN)}
        rest = {name: value for name, value in tensors.items() if not name.startswith(_OWN)}
        rollouts = Rollouts.from_tensors(rest, metadata)
        if {"adv", "reward", "place"} - own.keys() or len(own["adv"]) != len(rollouts):
            raise DataError("the saved images of an epoch are damaged")
        return OnlineBatch(rollouts, own["adv"], own["reward"], own["place"], own.get("means"))


@dataclass
class MadeEpoch:
    """The images of an epoch in this process.

    Args:
        micro: indices of the images of each micro-batch, without those that are not trained on.
        images: number of images of each micro-batch over all processes.
        facts: metrics logged with its first step.
    """

    epoch: int
    batch: OnlineBatch
    micro: list[list[int]]
    images: list[int]
    facts: dict[str, float] = field(default_factory=dict)

    def groups(
        self, plan: Sequence[tuple[int, PlannedStep]], start: int, prompts: int, batch_size: int
    ) -> Iterator[OnlineGroup]:
        """Yield the optimizer steps from number ``start`` on, each built when requested.

        Args:
            plan: (inner epoch, micro-batches) of every optimizer step.
            prompts: number of prompts of an epoch.
            batch_size: number of images of a micro-batch from which none was removed.
        """
        for number, (inner, planned) in enumerate(plan):
            if number < start:
                continue
            yield OnlineGroup(
                [
                    self.batch.select(self.micro[one]) if self.micro[one] else None
                    for one in planned.micro_batches
                ],
                Step(self.epoch, number, (), planned.images, number + 1 == len(plan)),
                inner=inner,
                fresh=number == 0,
                first_group=self.epoch * prompts,
                slots=prompts,
                facts=self.facts if number == 0 else {},
                skipped_K=self._skipped_groups(planned.passed, batch_size),
            )

    def _skipped_groups(self, micro_batches: Sequence[int], batch_size: int) -> torch.Tensor:
        """Group of each image removed from these micro-batches, int64, (K,)."""
        gone: list[int] = []
        for number in micro_batches:
            made = range(number * batch_size, min((number + 1) * batch_size, len(self.batch)))
            gone += sorted(set(made) - set(self.micro[number]))
        return self.batch.rollouts.group_N[torch.tensor(gone, dtype=torch.int64)]


class OnlineGroup(AccumulationGroup):
    """The micro-batches of one optimizer step of online training.

    Attributes:
        online: the micro-batches; ``None`` if this process has no images.
        inner: index of the pass over the epoch's images.
        fresh: whether the weights are still those the images were made with.
        first_group: number of the epoch's first prompt group; ids below are relative to it.
        slots: number of groups of the epoch over all processes.
        facts: metrics logged with the first step of the epoch.
        skipped_K: int64, group of each image of this process that would be in the step if it had not been
            skipped.
    """

    def __init__(
        self,
        batches: Sequence[OnlineBatch | None],
        step: Step,
        *,
        inner: int,
        fresh: bool,
        first_group: int,
        slots: int,
        facts: Mapping[str, float],
        skipped_K: torch.Tensor,
    ) -> None:
        super().__init__([], step)
        self.extend(batches)  # type: ignore[arg-type]
        self.online = list(batches)
        self.inner, self.fresh = inner, fresh
        self.first_group, self.slots = first_group, slots
        self.facts, self.skipped_K = dict(facts), skipped_K

    def batches(self) -> list[OnlineBatch]:
        """The micro-batches with images in this process."""
        return [batch for batch in self.online if batch is not None]
