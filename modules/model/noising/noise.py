"""Timesteps and noise, drawn per sample from streams that do not depend on batches, devices or processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from modules.model.batch import NoiseDraw
from modules.model.noising.distributions import DISTRIBUTIONS
from modules.model.noising.schedule import Schedule
from modules.spec.timestep_ranges import fault_of_distribution
from modules.util.errors import ConfigError
from modules.util.rng import Key, generator, python_random


@dataclass(frozen=True)
class NoiseOptions:
    """The distribution of timesteps and noise.

    Args:
        distribution: a name of ``distributions.DISTRIBUTIONS``; ``weight`` and ``bias`` mean what it says
            there.
        shift: > 1 moves timesteps towards noise: x -> shift x / (1 + (shift - 1) x).
        shifts_by_size: derive the shift from the size of the latents instead; see ``draw_noise``.
        min_strength, max_strength: the range of noise levels used, in [0, 1]; applied after the shift.
        range_first: apply the range before the shift.
        strata: K > 0 splits the distribution into K equally likely parts; the visits of an item walk through
            them in a random order of its own, a new order every K visits. 0 draws independently.
        pool: N > 0 gives each item N fixed draws, used in turn.
        offset_weight: noise constant over each channel is added with this weight.
        offset_by_level: the offset is multiplied by ``Schedule.offset_share`` of the timestep.
        perturbation_weight: extra noise on the input alone (Ning et al. 2023, arXiv 2301.11706).
        perturb_target: include the extra noise in the target too.
        caption_dropout: probability of training a sample with the empty prompt.
    """

    distribution: str = "UNIFORM"
    weight: float = 0.0
    bias: float = 0.0
    shift: float = 1.0
    min_strength: float = 0.0
    max_strength: float = 1.0
    strata: int = 0
    pool: int = 0
    offset_weight: float = 0.0
    perturbation_weight: float = 0.0
    caption_dropout: float = 0.0
    shifts_by_size: bool = False
    range_first: bool = False
    perturb_target: bool = False
    offset_by_level: bool = False

    def __post_init__(self) -> None:
        name = str(getattr(self.distribution, "value", self.distribution))
        object.__setattr__(self, "distribution", name)
        if name not in DISTRIBUTIONS:
            raise ConfigError(
                f"unknown timestep distribution {name!r}",
                field="timestep_distribution",
                hint=f"known: {', '.join(DISTRIBUTIONS)}",
            )
        if not 0.0 <= self.min_strength < self.max_strength <= 1.0:
            raise ConfigError(
                f"noising strengths must satisfy 0 <= min < max <= 1, not {self.min_strength} and "
                f"{self.max_strength}",
                field="min_noising_strength",
            )
        if self.shift <= 0.0:
            raise ConfigError(f"must be greater than 0, not {self.shift}", field="timestep_shift")
        fault = fault_of_distribution(name, self.weight, self.bias)
        if fault is not None:
            raise ConfigError(fault[1], field=fault[0])


def noise_level(uniform_B: torch.Tensor, options: NoiseOptions, shift: float | None = None) -> torch.Tensor:
    """Map uniform numbers in [0, 1) to noise levels by the inverse distribution function, (B,) float64. It is
    monotone, so that equal parts of one are equally likely parts of the other.

    Args:
        uniform_B: (B,).
        options: with ``range_first``, the levels are in [min_strength, max_strength) before the shift,
            otherwise after.
        shift: replaces that of the options.
    """
    shift = options.shift if shift is None else shift
    u = DISTRIBUTIONS[options.distribution](uniform_B.double(), options.weight, options.bias)
    if options.range_first:
        u = options.min_strength + (options.max_strength - options.min_strength) * u
        return shift * u / (1.0 + (shift - 1.0) * u)
    u = shift * u / (1.0 + (shift - 1.0) * u)
    return options.min_strength + (options.max_strength - options.min_strength) * u


def stratum_of(visit: int, strata: int, stream: str, seed: int, item: str) -> int:
    """The stratum (of K) of an item at its ``visit``-th visit."""
    order = list(range(strata))
    python_random(f"{stream}/strata", seed, item, visit // strata).shuffle(order)
    return order[visit % strata]


def draw_noise(
    schedule: Schedule,
    shape: Sequence[int],
    ids: Sequence[str],
    visits: Sequence[int],
    options: NoiseOptions,
    seed: int,
    stream: str = "noise",
    key: Sequence[Key] = (),
    stratum: int | None = None,
    shift: float | None = None,
) -> NoiseDraw:
    """Draw noise for each item, on the CPU.

    Args:
        shape: (C, h, w) of one latent.
        ids, visits: B stable ids and visit counts; these and ``seed``, ``stream``, ``key`` key the numbers.
        stratum: use this stratum for all items instead of cycling through them.
        shift: the shift of latents of this shape, if the options require one.

    Raises:
        ValueError: the stratum does not exist. ConfigError: the schedule has no offset shares.
    """
    if stratum is not None and not 0 <= stratum < options.strata:
        raise ValueError(f"stratum {stratum} of {options.strata} does not exist")
    uniforms: list[float] = []
    noises: list[torch.Tensor] = []
    perturbations: list[torch.Tensor] = []
    offsets: list[torch.Tensor] = []
    drops: list[bool] = []
    for item, visit in zip(ids, visits, strict=True):
        turn = visit % options.pool if options.pool else visit
        source = generator(stream, seed, item, turn, *key)
        drawn = options.strata and stratum is None
        part = stratum_of(turn, options.strata, stream, seed, item) if drawn else stratum
        uniforms.append(_uniform(source, part, options.strata))
        noises.append(torch.randn(tuple(shape), generator=source))
        if options.offset_weight:
            offsets.append(
                options.offset_weight * torch.randn(shape[0], *[1] * (len(shape) - 1), generator=source)
            )
            if not options.offset_by_level:
                noises[-1] = noises[-1] + offsets.pop()
        # separate streams, so that enabling these leaves the other numbers unchanged
        if options.perturbation_weight:
            extra = generator(f"{stream}/perturbation", seed, item, turn, *key)
            perturbations.append(options.perturbation_weight * torch.randn(tuple(shape), generator=extra))
            if options.perturb_target:
                noises[-1] = noises[-1] + perturbations.pop()
        if options.caption_dropout:
            coins = python_random(f"{stream}/caption", seed, item, turn, *key)
            drops.append(coins.random() < options.caption_dropout)
    level_B = noise_level(torch.tensor(uniforms, dtype=torch.float64), options, shift)
    timestep_B, noise_BChw = schedule.timestep(level_B), torch.stack(noises)
    return NoiseDraw(
        timestep_B=timestep_B,
        noise_BChw=_offset_by_level(noise_BChw, offsets, schedule, timestep_B) if offsets else noise_BChw,
        perturbation_BChw=torch.stack(perturbations) if perturbations else None,
        drop_caption_B=torch.tensor(drops) if drops else None,
    )


def _offset_by_level(
    noise_BChw: torch.Tensor, offsets: Sequence[torch.Tensor], schedule: Schedule, timestep_B: torch.Tensor
) -> torch.Tensor:
    """Add offsets times the shares of the timesteps to noise."""
    offset_BC11 = torch.stack(list(offsets))
    share_B = schedule.offset_share(timestep_B).float()
    return noise_BChw + share_B.view(-1, *[1] * (offset_BC11.dim() - 1)) * offset_BC11


def _uniform(source: torch.Generator, part: int | None, strata: int) -> float:
    """A number in [0, 1), or in one of K equal parts of it."""
    number = float(torch.rand((), generator=source, dtype=torch.float64))
    return number if part is None else (part + number) / strata
