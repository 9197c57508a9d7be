from __future__ import annotations

from collections.abc import Iterator

from modules.dataLoader.samplers import Step
from modules.rollout.samplers import GroupSampler
from modules.trainer.online import settings as online_settings
from modules.trainer.online.batch import MadeEpoch, OnlineGroup
from modules.trainer.online.step_plan import PlannedStep, order_of, plan_steps
from modules.util.config.TrainConfig import TrainConfig


class StepCutter:
    """Splits the images of an epoch into optimizer steps, deterministically.

    Args:
        sampler: tells which process made the images, and in which batches.
    """

    def __init__(self, config: TrainConfig, sampler: GroupSampler) -> None:
        self._config = config
        self._rule = online_settings.step_rule(config, sampler)

    def plan(self, made: MadeEpoch) -> list[tuple[int, PlannedStep]]:
        """(inner epoch, micro-batches) of every optimizer step; empty if nothing is left to train on."""
        found: list[tuple[int, PlannedStep]] = []
        for inner in range(self._config.rlhf_inner_epochs):
            order = order_of(len(made.micro), self._rule.unit, self._config.seed, made.epoch, inner)
            found += [(inner, planned) for planned in plan_steps(order, made.images, self._rule)]
        return found

    def groups(
        self, made: MadeEpoch, plan: list[tuple[int, PlannedStep]], start: int = 0
    ) -> Iterator[OnlineGroup]:
        """Yield the optimizer steps from number ``start`` on, each built when requested."""
        per_epoch = self._config.rlhf_prompts_per_epoch
        for number, (inner, planned) in enumerate(plan):
            if number < start:
                continue
            batches = [
                made.batch.select(made.micro[one]) if made.micro[one] else None
                for one in planned.micro_batches
            ]
            yield OnlineGroup(
                batches,
                Step(made.epoch, number, (), planned.images, number + 1 == len(plan)),
                inner=inner,
                fresh=number == 0,
                first_group=made.epoch * per_epoch,
                slots=per_epoch,
                facts=made.facts if number == 0 else {},
                skipped_K=made.skipped_groups(planned.passed, self._config.batch_size),
            )
