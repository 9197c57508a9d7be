from __future__ import annotations

from collections.abc import Sequence

from modules.rollout.samplers import GroupSampler
from modules.trainer.online import settings as online_settings
from modules.trainer.online.step_plan import PlannedStep, order_of, plan_steps
from modules.util.config.TrainConfig import TrainConfig


class StepCutter:
    """Plans the optimizer steps of an epoch from the sizes of its micro-batches, deterministically.

    Args:
        sampler: tells which process made the images, and in which batches.
    """

    def __init__(self, config: TrainConfig, sampler: GroupSampler) -> None:
        self._config = config
        self._rule = online_settings.step_rule(config, sampler)

    def plan(self, epoch: int, images: Sequence[int]) -> list[tuple[int, PlannedStep]]:
        """(inner epoch, micro-batches) of every optimizer step; empty if nothing is left to train on.

        Args:
            images: number of images of each micro-batch over all processes.
        """
        found: list[tuple[int, PlannedStep]] = []
        for inner in range(self._config.rlhf_inner_epochs):
            order = order_of(len(images), self._rule.unit, self._config.seed, epoch, inner)
            found += [(inner, planned) for planned in plan_steps(order, images, self._rule)]
        return found
