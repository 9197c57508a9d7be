"""The steps of a rollout: which of them add noise, and which of those are trained on.

A plan is a function of the model's schedule, the options, the run's seed and the epoch. Generation and
training therefore compute the same one, and it need not be stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from modules.model.Model import Model
from modules.model.noising.schedule import DiscreteSchedule, Schedule
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.rollout import transitions
from modules.rollout.transitions import Position
from modules.util.errors import ConfigError
from modules.util.rng import python_random

RANDOM, CONTIGUOUS = "RANDOM", "CONTIGUOUS"
CHOICES = (RANDOM, CONTIGUOUS)


@dataclass(frozen=True)
class PlanOptions:
    """Options for generating images for training.

    Args:
        steps: denoising steps.
        kind: transition of the trained steps; AUTO is DDIM or FLOW_SDE, ODE trains none (decoupled modes).
            All other steps are ODE.
        noise_level: eta; ``None`` means the transition's default.
        temperature: multiplies the standard deviation of the noise, in generation and log-probability alike.
        window: (first, last), inclusive: the steps that may be trained; ``None`` for all but the last.
        count: how many of them are trained per epoch; 0 for all.
        choice: ``RANDOM`` (any subset) or ``CONTIGUOUS`` (neighbours, at a random position).
    """

    steps: int
    kind: str = transitions.AUTO
    noise_level: float | None = None
    temperature: float = 1.0
    window: tuple[int, int] | None = None
    count: int = 0
    choice: str = RANDOM

    def __post_init__(self) -> None:
        for name in ("kind", "choice"):
            object.__setattr__(self, name, transitions.name_of(getattr(self, name)))
        if self.steps < 1:
            raise ConfigError(f"at least one step is needed, not {self.steps}", field="rlhf_rollout_steps")
        transitions.known_name("choice", self.choice, CHOICES, "rlhf_sde_choice")
        if self.count < 0:
            raise ConfigError(f"must be at least 0, not {self.count}", field="rlhf_num_sde_steps")
        if self.window is not None and not 0 <= self.window[0] <= self.window[1] < self.steps:
            raise ConfigError(
                f"the window {list(self.window)} is not within the steps 0 to {self.steps - 1}",
                field="rlhf_sde_window",
            )


@dataclass(frozen=True)
class RolloutPlan:
    """The steps of one epoch's rollout.

    Args:
        positions: one per step, from noise to image.
        trained: numbers of the steps that add noise and are trained on, ascending.
        stds: standard deviation of each step's noise, with temperature; 0 for those not trained.
    """

    positions: tuple[Position, ...]
    trained: tuple[int, ...]
    kind: str
    noise_level: float
    temperature: float
    stds: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def points(self) -> tuple[int, ...]:
        """The points on the path whose latents must be kept: the start and end of each trained step."""
        return tuple(sorted({place for one in self.trained for place in (one, one + 1)}))

    def kind_of(self, index: int) -> str:
        """The transition of step ``index``: the plan's if it is trained, else ODE, which adds no noise."""
        return self.kind if index in self.trained else transitions.ODE

    def timestep(self, index: int, batch: int, schedule: Schedule) -> torch.Tensor:
        """The timestep given to the denoiser, (B,): int64 for discrete schedules, float32 for flow."""
        value = self.positions[index].timestep
        if isinstance(schedule, DiscreteSchedule):
            return torch.full((batch,), int(value), dtype=torch.int64)
        return torch.full((batch,), value, dtype=torch.float32)


def path(schedule: Schedule, sampler: Any) -> tuple[Position, ...]:
    """The steps of a sampler with its timesteps set: DDIM for a discrete schedule, Euler for flow."""
    timesteps = [float(t) for t in sampler.timesteps]
    if isinstance(schedule, DiscreteSchedule):
        # the path ends at the schedule's first level, not at 0, because models are not trained below it
        places = torch.tensor([*timesteps, 0.0], dtype=torch.float64).long()
        signal, noise = schedule.coefficients(places)
        levels = list(zip(signal.tolist(), noise.tolist(), strict=True))
    else:
        levels = [(1.0 - float(sigma), float(sigma)) for sigma in sampler.sigmas]
    safe = levels[1][1]
    if len(levels) == 2:
        # a single step has no second level above 0; half way keeps the Flow-SDE finite
        safe = (levels[0][1] + levels[1][1]) / 2.0
    return tuple(
        Position(timestep, *begin, *end, safe)
        for timestep, begin, end in zip(timesteps, levels[:-1], levels[1:], strict=True)
    )


def plan_for(
    setup: BaseModelSetup, model: Model, options: PlanOptions, size: tuple[int, int], seed: int, epoch: int
) -> RolloutPlan:
    """``make_plan`` for images of ``size`` (height, width), on which the noise levels of some models depend."""
    name = "DDIM" if isinstance(model.schedule, DiscreteSchedule) else "EULER"
    sampler = setup.make_sampler(model, name, options.steps, size)
    return make_plan(model.schedule, path(model.schedule, sampler), options, seed, epoch)


def make_plan(
    schedule: Schedule, positions: tuple[Position, ...], options: PlanOptions, seed: int, epoch: int
) -> RolloutPlan:
    """Make the plan of an epoch.

    The last step and steps without noise (eta 0, or equal noise levels) are never trained:
    their log-probability does not exist.

    Raises:
        ConfigError: no step is left to train, or more are requested than exist.
        UnsupportedError: the transition is for the other kind of schedule.
    """
    kind = transitions.check_kind(options.kind, schedule.prediction)
    default = transitions.DEFAULT_NOISE_LEVEL[kind]
    eta = default if options.noise_level is None else options.noise_level
    trained: tuple[int, ...] = ()
    stds = [0.0] * len(positions)
    if kind != transitions.ODE:
        found = [transitions.deviation(kind, at, eta, options.temperature) for at in positions[:-1]]
        possible = [index for index, std in enumerate(found) if std > 0.0]
        trained = _choose(_windowed(possible, options), options, seed, epoch)
        for index in trained:
            stds[index] = found[index]
    return RolloutPlan(positions, trained, kind, eta, options.temperature, tuple(stds))


def _windowed(possible: list[int], options: PlanOptions) -> list[int]:
    first, last = options.window or (0, options.steps - 1)
    inside = [index for index in possible if first <= index <= last]
    if not inside:
        raise ConfigError(
            f"none of the denoising steps {first} to {last} (of 0 to {options.steps - 1}) can be trained: the last one "
            "and those without noise are never trained",
            field="rlhf_sde_window"
            if possible
            else "rlhf_rollout_noise_level"
            if options.steps > 1
            else "rlhf_rollout_steps",
            hint="use more denoising steps, a wider window or a noise level above 0",
        )
    if options.count > len(inside):
        raise ConfigError(
            f"{options.count} denoising steps are to be trained, but only {len(inside)} can be",
            field="rlhf_num_sde_steps",
            hint=f"set it to {len(inside)} or less, or to 0 for all",
        )
    return inside


def _choose(possible: list[int], options: PlanOptions, seed: int, epoch: int) -> tuple[int, ...]:
    if options.count in (0, len(possible)):
        return tuple(possible)
    source = python_random("rollout/sde-steps", seed, epoch)
    if options.choice == RANDOM:
        return tuple(sorted(source.sample(possible, options.count)))
    start = source.randrange(len(possible) - options.count + 1)
    return tuple(possible[start : start + options.count])
