"""Distributions of noise levels, as inverse distribution functions of uniform numbers.

Levels are in [0, 1], where 1 is noise. Every function is increasing, so that equal parts of [0, 1] are
equally likely parts of the levels. Strata, antithetic draws and a stream per item therefore work with all of
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

import torch

Inverse = Callable[[torch.Tensor, float, float], torch.Tensor]
"""(uniform numbers (B,) float64, weight, bias) -> levels (B,) float64"""

POINTS = 4096
_LEAST_EXPONENT = 1e-4
_LEAST_FALL = 0.5
_LEAST_LOGIT = -600.0


def _uniform(u: torch.Tensor, weight: float, bias: float) -> torch.Tensor:
    return u


def _logit_normal(u: torch.Tensor, weight: float, bias: float) -> torch.Tensor:
    """sigmoid of a normal with mean ``bias`` and standard deviation ``1 + weight`` (arXiv 2403.03206, section 3.1)."""
    # the end points would be infinite before the sigmoid
    u = u.clamp(1e-12, 1.0 - 1e-12)
    return torch.sigmoid(bias + (weight + 1.0) * torch.special.ndtri(u))


def _sigmoid(u: torch.Tensor, weight: float, bias: float) -> torch.Tensor:
    """Density proportional to sigmoid(weight (x - bias - 0.5)) on [0, 1]."""
    slope, centre = weight, bias + 0.5
    if abs(slope) < 1e-4:
        return u
    if max(-slope * centre, slope * (1.0 - centre)) < _LEAST_LOGIT:
        # sigmoid(y) is exp(y) here, which would be 0 at both ends
        return (torch.logaddexp((1.0 - u).log(), u.log() + slope) / slope).clamp(0.0, 1.0)
    softplus = torch.nn.functional.softplus
    low = softplus(torch.tensor(-slope * centre, dtype=torch.float64))
    high = softplus(torch.tensor(slope * (1.0 - centre), dtype=torch.float64))
    mass = low + u * (high - low)
    # softplus(y) = mass  <=>  y = mass + log(1 - exp(-mass)), which does not overflow
    y = mass + torch.log(-torch.expm1(-mass))
    return (y / slope + centre).clamp(0.0, 1.0)


def _heavy_tail(u: torch.Tensor, weight: float, bias: float) -> torch.Tensor:
    """ "Mode sampling with heavy tails" (arXiv 2403.03206, section 3.1), with v = 1 - u so that it increases."""
    v = 1.0 - u
    return 1.0 - v - weight * (torch.cos(0.5 * math.pi * v).square() - 1.0 + v)


def _cos_map(u: torch.Tensor, weight: float, bias: float) -> torch.Tensor:
    """Density 2 / (pi - 2 pi x + 2 pi x^2) (CosMap, arXiv 2403.03206, section 3.1)."""
    return 1.0 - 1.0 / (torch.tan(0.5 * math.pi * u) + 1.0)


def _inverted_parabola(u: torch.Tensor, weight: float, bias: float) -> torch.Tensor:
    """Density proportional to max(0, 2 - weight (x - bias - 0.5)^2)."""
    return _look_up(u, *_parabola_table(weight, bias + 0.5))


@lru_cache(maxsize=16)
def _parabola_table(weight: float, centre: float) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(0.0, 1.0, POINTS, dtype=torch.float64)
    return _cumulated((2.0 - weight * (x - centre).square()).clamp_min(0.0), x), x


def _beta(u: torch.Tensor, weight: float, bias: float) -> torch.Tensor:
    """Beta(weight, bias), of which each half has its own table."""
    a, b = max(_LEAST_EXPONENT, weight), max(_LEAST_EXPONENT, bias)
    (low, low_y, low_root), (high, high_y, high_root) = _beta_tables(a, b)
    mass = low[-1] / (low[-1] + high[-1])
    below = _look_up(u / mass.clamp_min(1e-300), low / low[-1].clamp_min(1e-300), low_y).clamp(0.0, 1.0)
    above = _look_up((1.0 - u) / (1.0 - mass).clamp_min(1e-300), high / high[-1].clamp_min(1e-300), high_y)
    return torch.where(u <= mass, below**low_root, 1.0 - above.clamp(0.0, 1.0) ** high_root)


Half = tuple[torch.Tensor, torch.Tensor, float]
"""Mass up to each point, the points, and the power of a point that is its level."""


@lru_cache(maxsize=16)
def _beta_tables(a: float, b: float) -> tuple[Half, Half]:
    return _beta_half(a, b), _beta_half(b, a)


def _beta_half(a: float, b: float) -> Half:
    """Mass of x^(a-1) (1-x)^(b-1) from 0 up to 1/2.

    Its points are even in y = x^a, over which the density is (1 - y^(1/a))^(b-1) / a, and so bounded for every a. For
    a large a, the first of these points is far from 0. Where the density falls a lot up to it, the points are even in
    x instead.
    """
    y = torch.linspace(0.0, 0.5**a, POINTS, dtype=torch.float64)
    density, root = (1.0 - y ** (1.0 / a)) ** (b - 1.0) / a, 1.0 / a
    if density[1] < _LEAST_FALL * density[0]:
        y, root = torch.linspace(0.0, 0.5, POINTS, dtype=torch.float64), 1.0
        density = y ** (a - 1.0) * (1.0 - y) ** (b - 1.0)
    steps = 0.5 * (density[1:] + density[:-1]) * (y[1:] - y[:-1])
    return torch.cat([torch.zeros(1, dtype=torch.float64), steps.cumsum(0)]), y, root


def _power(u: torch.Tensor, weight: float, bias: float) -> torch.Tensor:
    """u^weight (low levels more often) for a bias below 0, otherwise 1 - (1 - u)^weight."""
    return u**weight if bias < 0.0 else 1.0 - (1.0 - u) ** weight


def _cumulated(density_x: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The distribution function of a density, linear between the points, from 0 to 1."""
    steps = 0.5 * (density_x[1:] + density_x[:-1]) * (x[1:] - x[:-1])
    total = torch.cat([torch.zeros(1, dtype=torch.float64), steps.cumsum(0)])
    return total / total[-1]


def _look_up(u: torch.Tensor, mass: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Invert an increasing table at ``u``, linearly between its points."""
    right = torch.searchsorted(mass, u.clamp(0.0, 1.0).contiguous(), right=True).clamp(1, len(mass) - 1)
    low, high = mass[right - 1], mass[right]
    share = torch.where(high > low, (u - low) / (high - low).clamp_min(1e-300), torch.zeros_like(u)).clamp(
        0.0, 1.0
    )
    return x[right - 1] + share * (x[right] - x[right - 1])


DISTRIBUTIONS: Mapping[str, Inverse] = {
    "UNIFORM": _uniform,
    "SIGMOID": _sigmoid,
    "LOGIT_NORMAL": _logit_normal,
    "HEAVY_TAIL": _heavy_tail,
    "COS_MAP": _cos_map,
    "INVERTED_PARABOLA": _inverted_parabola,
    "BETA": _beta,
    "POWER": _power,
}
