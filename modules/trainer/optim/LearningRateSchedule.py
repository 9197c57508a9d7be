"""Learning rate as a function of the optimizer step alone: nothing to save, nothing to restore."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import LearningRateScheduler

Shape = Callable[[float, float], float]
"""(share of the run after the warm-up that is over, cycles) -> factor, both in [0, 1]."""


def _constant(x: float, cycles: float) -> float:
    return 1.0


def _linear(x: float, cycles: float) -> float:
    return 1.0 - x


def _cosine(x: float, cycles: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * x))


def _cosine_with_restarts(x: float, cycles: float) -> float:
    """Down and up again ``cycles`` times, ending low: cycles - 1/2 whole waves."""
    return 0.5 * (1.0 + math.cos(math.pi * x * (2.0 * cycles - 1.0)))


def _cosine_with_hard_restarts(x: float, cycles: float) -> float:
    """Down ``cycles`` times, jumping up in between; 0 at the very end."""
    return 0.0 if x >= 1.0 else 0.5 * (1.0 + math.cos(math.pi * ((cycles * x) % 1.0)))


def _rex(x: float, cycles: float) -> float:
    """Reflected exponential: stays high long and falls late. Source: Chen et al. 2021 (arXiv 2107.04197)."""
    return (1.0 - x) / (1.0 - x / 2.0)


SHAPES: dict[LearningRateScheduler, Shape] = {
    LearningRateScheduler.CONSTANT: _constant,
    LearningRateScheduler.LINEAR: _linear,
    LearningRateScheduler.COSINE: _cosine,
    LearningRateScheduler.COSINE_WITH_RESTARTS: _cosine_with_restarts,
    LearningRateScheduler.COSINE_WITH_HARD_RESTARTS: _cosine_with_hard_restarts,
    LearningRateScheduler.REX: _rex,
}


@dataclass(frozen=True)
class LearningRateSchedule:
    """Factor on the learning rate for each optimizer step of a run.

    Args:
        kind: what it looks like after the warm-up.
        total_steps: optimizer steps of the whole run.
        warmup: steps over which the factor rises linearly; up to 1 it is a share of ``total_steps``.
        cycles: for the cosines.
        min_factor: the lowest factor after the warm-up; CONSTANT stays at 1.
    """

    kind: LearningRateScheduler
    total_steps: int
    warmup: float = 0.0
    cycles: float = 1.0
    min_factor: float = 0.0

    @classmethod
    def from_config(cls, config: TrainConfig, total_steps: int) -> LearningRateSchedule:
        return cls(
            config.learning_rate_scheduler,
            total_steps,
            config.learning_rate_warmup_steps,
            config.learning_rate_cycles,
            config.learning_rate_min_factor,
        )

    @property
    def warmup_steps(self) -> int:
        return round(self.warmup * self.total_steps if self.warmup <= 1 else self.warmup)

    def factor(self, step: int) -> float:
        """For the optimizer step after ``step`` finished ones; the first step of a warm-up is already above 0."""
        warmup = self.warmup_steps
        if step < warmup:
            return (step + 1) / (warmup + 1)
        x = min((step - warmup) / max(self.total_steps - warmup, 1), 1.0)
        shape = SHAPES[self.kind](x, self.cycles)
        return self.min_factor + (1.0 - self.min_factor) * shape
