"""The learning rate as a function of the optimizer step alone, so that there is no state to save."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from modules.trainer.optim.CustomSchedule import custom_factors
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import LearningRateScheduler

Shape = Callable[[float, "LearningRateSchedule"], float]
"""(elapsed share of the run after the warm-up, settings) -> factor, both in [0, 1]."""


def _constant(x: float, own: LearningRateSchedule) -> float:
    return 1.0


def _linear(x: float, own: LearningRateSchedule) -> float:
    return 1.0 - x


def _cosine(x: float, own: LearningRateSchedule) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * x))


def _cosine_with_restarts(x: float, own: LearningRateSchedule) -> float:
    """Falls and rises ``cycles`` times. Ending low means cycles - 1/2 whole waves, ending high means whole waves."""
    waves = 2.0 * own.cycles if own.ends_high else 2.0 * own.cycles - 1.0
    return 0.5 * (1.0 + math.cos(math.pi * x * waves))


def _cosine_with_hard_restarts(x: float, own: LearningRateSchedule) -> float:
    """Falls ``cycles`` times with jumps up in between; 0 at the very end."""
    return 0.0 if x >= 1.0 else 0.5 * (1.0 + math.cos(math.pi * ((own.cycles * x) % 1.0)))


def _rex(x: float, own: LearningRateSchedule) -> float:
    """Reflected exponential: stays high long and falls late; d = 1/2 in the paper (Chen et al. 2021, arXiv
    2107.04197): (1 - x) / ((1 - d) + d (1 - x)).
    """
    return (1.0 - x) / (1.0 - own.rex_d * x)


def _custom(x: float, own: LearningRateSchedule) -> float:
    return own.custom[min(round(x * own.steps_after_warmup), len(own.custom) - 1)]


SHAPES: dict[LearningRateScheduler, Shape] = {
    LearningRateScheduler.CONSTANT: _constant,
    LearningRateScheduler.LINEAR: _linear,
    LearningRateScheduler.COSINE: _cosine,
    LearningRateScheduler.COSINE_WITH_RESTARTS: _cosine_with_restarts,
    LearningRateScheduler.COSINE_WITH_HARD_RESTARTS: _cosine_with_hard_restarts,
    LearningRateScheduler.REX: _rex,
    LearningRateScheduler.ADAFACTOR: _constant,
    LearningRateScheduler.CUSTOM: _custom,
}


@dataclass(frozen=True)
class LearningRateSchedule:
    """Factor on the learning rate for each optimizer step of a run.

    Args:
        kind: the shape after the warm-up.
        total_steps: optimizer steps of the whole run.
        warmup: steps over which the factor rises linearly; a value up to 1 is a share of ``total_steps``.
        cycles: number of cycles of the cosines.
        min_factor: the lowest factor after the warm-up; CONSTANT stays at 1.
        rex_d: how long REX stays high, in [0, 1).
        ends_high: whether COSINE_WITH_RESTARTS ends at 1.
        custom: the factors of CUSTOM, one for each step after the warm-up.
    """

    kind: LearningRateScheduler
    total_steps: int
    warmup: float = 0.0
    cycles: float = 1.0
    min_factor: float = 0.0
    rex_d: float = 0.5
    ends_high: bool = False
    custom: tuple[float, ...] = (1.0,)

    @classmethod
    def from_config(
        cls,
        config: TrainConfig,
        total_steps: int,
        tried: int | None = None,
        epoch_steps: int | None = None,
    ) -> LearningRateSchedule:
        """The schedule of a run.

        Args:
            tried: compute only this many steps of CUSTOM, if the length of the run is not known yet.
            epoch_steps: optimizer steps of an epoch; ``None`` if they are not known yet.

        Raises:
            ConfigError: the class that CUSTOM names cannot be used.
        """
        made = cls(
            config.learning_rate_scheduler,
            total_steps,
            config.learning_rate_warmup_steps,
            config.learning_rate_cycles,
            config.learning_rate_min_factor,
            config.learning_rate_rex_d,
            config.learning_rate_ends_high,
        )
        if made.kind is not LearningRateScheduler.CUSTOM:
            return made
        # without max_steps, the epochs make up the run
        known = epoch_steps if config.max_steps else None
        return replace(made, custom=custom_factors(config, total_steps, made.warmup_steps, tried, known))

    @property
    def warmup_steps(self) -> int:
        return round(self.warmup * self.total_steps if self.warmup <= 1 else self.warmup)

    @property
    def steps_after_warmup(self) -> int:
        return max(self.total_steps - self.warmup_steps, 1)

    def factor(self, step: int) -> float:
        """The factor for the optimizer step after ``step`` finished ones. The first step of a warm-up is
        already above 0.
        """
        warmup = self.warmup_steps
        if step < warmup:
            return (step + 1) / (warmup + 1)
        x = min((step - warmup) / self.steps_after_warmup, 1.0)
        shape = SHAPES[self.kind](x, self)
        return self.min_factor + (1.0 - self.min_factor) * shape
