"""Timesteps and noise of decoupled online training (DGPO, arXiv 2510.08425): at which noise levels the finished images
are evaluated, and which noise the members of a group share.

Timesteps of an inner epoch are one list for all groups and processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from modules.model.noising.schedule import Schedule
from modules.rollout.transitions import known_name
from modules.util.errors import ConfigError
from modules.util.rng import Key, generator

UNIFORM, LOGIT_NORMAL = "UNIFORM", "LOGIT_NORMAL"
DISCRETE, WITH_INIT, WITHOUT_INIT = "DISCRETE", "DISCRETE_WITH_INIT", "DISCRETE_WO_INIT"
CONTINUOUS_SAMPLERS = (UNIFORM, LOGIT_NORMAL)
DISCRETE_SAMPLERS = (DISCRETE, WITH_INIT, WITHOUT_INIT)
SAMPLERS = (*CONTINUOUS_SAMPLERS, *DISCRETE_SAMPLERS)

GROUP_FIXED, GROUP_PER_TIMESTEP, INDEPENDENT = "GROUP_FIXED", "GROUP_PER_TIMESTEP", "INDEPENDENT"
NOISES = (GROUP_FIXED, GROUP_PER_TIMESTEP, INDEPENDENT)


@dataclass(frozen=True)
class TimestepOptions:
    """Options for drawing timesteps.

    Args:
        sampler: UNIFORM and LOGIT_NORMAL draw noise levels; DISCRETE draws among the steps the images were made
            with, DISCRETE_WITH_INIT always takes the first of them too, DISCRETE_WO_INIT never does.
        count: timesteps of an inner epoch; 0 for as many as there are rollout steps in the range.
        interval: (begin, end) along denoising, 0 for pure noise and 1 for the image.
        shift: > 1 moves UNIFORM and LOGIT_NORMAL towards the image, 1 leaves them.
        mean, std: of the normal distribution of LOGIT_NORMAL.
    """

    sampler: str = DISCRETE
    count: int = 0
    interval: tuple[float, float] = (0.0, 0.6)
    shift: float = 3.0
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        name = known_name("sampler", self.sampler, SAMPLERS, "rlhf_timestep_sampler")
        object.__setattr__(self, "sampler", name)
        low, high = self.interval
        if not 0.0 <= low < high <= 1.0:
            raise ConfigError(
                f"must satisfy 0 <= begin < end <= 1, not {low} and {high}", field="rlhf_timestep_range_low"
            )
        if self.count < 0:
            raise ConfigError(f"must be at least 0, not {self.count}", field="rlhf_num_train_timesteps")
        if not (math.isfinite(self.shift) and self.shift > 0.0):
            raise ConfigError(f"must be finite and greater than 0, not {self.shift}", field="rlhf_time_shift")
        if not (math.isfinite(self.mean) and math.isfinite(self.std) and self.std > 0.0):
            raise ConfigError(f"must be finite and greater than 0, not {self.std}", field="rlhf_timestep_std")


def timestep_count(schedule: Schedule, options: TimestepOptions, rollout_timesteps: Sequence[float]) -> int:
    """Number of timesteps of an inner epoch. Raises as ``sample_timesteps`` does."""
    if options.count:
        return options.count
    low, high = options.interval
    # slightly more, so that 10 * (0.6 - 0.3) is 3
    count = max(1, int(len(rollout_timesteps) * (high - low) + 1e-9))
    if options.sampler in CONTINUOUS_SAMPLERS:
        return count
    return min(count, len(valid_steps(options, rollout_timesteps, schedule.steps)))


def sample_timesteps(
    schedule: Schedule,
    options: TimestepOptions,
    rollout_timesteps: Sequence[float],
    seed: int,
    epoch: int,
    inner_epoch: int = 0,
) -> torch.Tensor:
    """Draw the timesteps of an inner epoch, (T,): int64 for discrete schedules, float32 for flow.

    Args:
        rollout_timesteps: timesteps of the rollout's steps, descending (``Position.timestep``).

    Raises:
        ConfigError: no rollout step is in the interval, or fewer than are to be drawn.
    """
    count = timestep_count(schedule, options, rollout_timesteps)
    source = generator("rollout/timesteps", seed, epoch, inner_epoch)
    if options.sampler in CONTINUOUS_SAMPLERS:
        progress_T = draw_progress(options, count, source)
        return schedule.timestep((1.0 - progress_T).clamp(0.0, 1.0))
    valid = valid_steps(options, rollout_timesteps, schedule.steps)
    chosen = draw_steps(options, valid, count, source)
    dtype = schedule.timestep(torch.zeros(1)).dtype
    return torch.tensor([rollout_timesteps[index] for index in chosen], dtype=torch.float64).to(dtype)


def draw_progress(options: TimestepOptions, count: int, source: torch.Generator) -> torch.Tensor:
    """Stratified positions along denoising in random order, (T,) float64, 0 for noise."""
    low, high = options.interval
    u_T = (torch.arange(count) + torch.rand(count, generator=source, dtype=torch.float64)) / count
    u_T = u_T[torch.randperm(count, generator=source)]
    if options.sampler == LOGIT_NORMAL:
        normal_T = torch.special.ndtri(u_T.clamp(1e-7, 1.0 - 1e-7))
        raw_T = _shifted(torch.sigmoid(options.mean + options.std * normal_T), options.shift)
        return low + raw_T.clamp(0.01, 1.0 - 1e-6) * (high - low)
    return low + _shifted(u_T, options.shift) * (high - low)


def _shifted(f: torch.Tensor, factor: float) -> torch.Tensor:
    return factor * f / (1.0 + (factor - 1.0) * f)


def valid_steps(options: TimestepOptions, rollout_timesteps: Sequence[float], train_steps: int) -> list[int]:
    """Numbers of the rollout steps whose timesteps are in the interval, ascending.

    Raises:
        ConfigError: there are none.
    """
    low, high = options.interval
    top, bottom = train_steps * (1.0 - low), train_steps * (1.0 - high)
    # table entries are rounded to float32
    slack = 1e-4
    valid = [i for i, t in enumerate(rollout_timesteps) if bottom - slack <= t <= top + slack]
    if options.sampler == WITHOUT_INIT:
        valid = valid[1:]
    if not valid:
        raise ConfigError(
            f"no denoising step of the rollout is between {low} and {high} of the way from noise to image"
            + (", apart from the first one" if options.sampler == WITHOUT_INIT else ""),
            field="rlhf_timestep_range_low",
            hint="widen the interval or use more rollout steps",
        )
    return valid


def draw_steps(
    options: TimestepOptions, valid: Sequence[int], count: int, source: torch.Generator
) -> list[int]:
    """Return the rollout steps that are used, in the order of denoising.

    No step is drawn twice, and each is drawn equally often: the steps are laid end to end and sampled at
    ``count`` equal distances from a random start.

    Args:
        valid: neighbouring step numbers.

    Raises:
        ConfigError: more are requested than exist.
    """
    if count > len(valid):
        raise ConfigError(
            f"{count} timesteps are to be drawn, but only {len(valid)} steps of the rollout are in the interval",
            field="rlhf_num_train_timesteps",
            hint=f"draw up to {len(valid)}, widen the interval, or use more rollout steps",
        )
    chosen = list(valid[:1]) if options.sampler == WITH_INIT else []
    rest = list(valid[1:]) if options.sampler == WITH_INIT else list(valid)
    wanted = count - len(chosen)
    if wanted <= 0:
        return chosen
    begin = float(torch.rand((), generator=source, dtype=torch.float64))
    width = len(rest) / wanted
    return chosen + [rest[min(int((k + begin) * width), len(rest) - 1)] for k in range(wanted)]


def group_noise(
    kind: str,
    groups: Sequence[int],
    ids: Sequence[str],
    shape: Sequence[int],
    seed: int,
    epoch: int,
    inner_epoch: int,
    timestep_index: int,
) -> torch.Tensor:
    """Training noise of B images, (B, C, h, w) float32 on the CPU; the same in any batch and process.

    Args:
        kind: ``GROUP_FIXED`` (one noise for a group at all timesteps of an inner epoch),
            ``GROUP_PER_TIMESTEP`` (another at each, as the authors of DGPO have it) or ``INDEPENDENT`` (each
            image and timestep its own).
        groups, ids: groups and ids of the images.
        shape: (C, h, w).
        timestep_index: index in the list of the inner epoch's timesteps.

    Raises:
        ConfigError: the kind is unknown.
    """
    name = known_name("noise", kind, NOISES, "rlhf_dgpo_noise")
    drawn: dict[tuple[Key, ...], torch.Tensor] = {}
    rows = []
    for group, image in zip(groups, ids, strict=True):
        key: tuple[Key, ...] = (int(group),)
        if name == GROUP_PER_TIMESTEP:
            key = (int(group), timestep_index)
        elif name == INDEPENDENT:
            key = (image, timestep_index)
        if key not in drawn:
            source = generator(f"rollout/noise/{name}", seed, epoch, inner_epoch, *key)
            drawn[key] = torch.randn(tuple(shape), generator=source)
        rows.append(drawn[key])
    return torch.stack(rows)
