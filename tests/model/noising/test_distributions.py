"""Each distribution of timesteps against its density or its formula, worked out independently."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from modules.model.noising.distributions import DISTRIBUTIONS
from modules.model.noising.noise import NoiseOptions, draw_noise, noise_level
from modules.model.noising.schedule import FlowSchedule
from modules.util.enum.choices import TimestepDistribution
from modules.util.errors import ConfigError

DRAWS = 20_000
CASES = [
    ("UNIFORM", 0.0, 0.0),
    ("LOGIT_NORMAL", 0.5, -0.3),
    ("SIGMOID", 6.0, 0.1),
    ("HEAVY_TAIL", 1.29, 0.0),
    ("HEAVY_TAIL", -1.0, 0.0),
    ("COS_MAP", 0.0, 0.0),
    ("INVERTED_PARABOLA", 7.7, 0.0),
    ("INVERTED_PARABOLA", 20.0, 0.3),
    ("INVERTED_PARABOLA", -5.0, 0.0),
    ("BETA", 0.5, 1.0),
    ("BETA", 2.0, 5.0),
    ("BETA", 0.3, 0.4),
    ("BETA", 20.0, 20.0),
    ("BETA", 20.0, 4.0),
    ("BETA", 2.0, 100.0),
    ("BETA", 100.0, 3.0),
    ("POWER", 3.0, -1.0),
    ("POWER", 3.0, 0.0),
]
DENSITIES: dict[str, Callable[[np.ndarray, float, float], np.ndarray]] = {
    "UNIFORM": lambda x, w, b: np.ones_like(x),
    "LOGIT_NORMAL": lambda x, w, b: np.exp(-0.5 * ((np.log(x / (1 - x)) - b) / (1 + w)) ** 2) / (x * (1 - x)),
    "SIGMOID": lambda x, w, b: 1 / (1 + np.exp(-w * (x - b - 0.5))),
    "COS_MAP": lambda x, w, b: 2 / (np.pi - 2 * np.pi * x + 2 * np.pi * x**2),
    "INVERTED_PARABOLA": lambda x, w, b: np.maximum(0, 2 - w * (x - b - 0.5) ** 2),
    "BETA": lambda x, w, b: x ** (w - 1) * (1 - x) ** (b - 1),
    "POWER": lambda x, w, b: x ** (1 / w - 1) if b < 0 else (1 - x) ** (1 / w - 1),
}


def cumulative(name: str, weight: float, bias: float, x: np.ndarray) -> np.ndarray:
    """The distribution function by summing the density over very fine steps that get finer towards both ends."""
    if name == "HEAVY_TAIL":
        # its inverse is the definition: turn the formula round on a fine grid
        v = np.linspace(1, 0, 400_001)
        levels = 1 - v - weight * (np.cos(np.pi * v / 2) ** 2 - 1 + v)
        return np.interp(x, levels, 1 - v)
    t = np.linspace(0, 1, 400_001)
    edges = t**6 / (t**6 + (1 - t) ** 6)
    middles = np.clip(0.5 * (edges[1:] + edges[:-1]), 1e-30, 1 - 1e-16)
    mass = np.concatenate([[0], np.cumsum(DENSITIES[name](middles, weight, bias) * np.diff(edges))])
    return np.interp(x, edges, mass / mass[-1])


def levels(name: str, weight: float, bias: float, u: list[float]) -> list[float]:
    options = NoiseOptions(name, weight=weight, bias=bias)
    return noise_level(torch.tensor(u, dtype=torch.float64), options).tolist()


def test_every_name_has_a_distribution() -> None:
    assert set(DISTRIBUTIONS) == {one.value for one in TimestepDistribution}


@pytest.mark.parametrize(("name", "weight", "bias"), CASES)
def test_draws_have_the_distribution(name: str, weight: float, bias: float) -> None:
    u = torch.rand(DRAWS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    drawn = np.sort(noise_level(u, NoiseOptions(name, weight=weight, bias=bias)).numpy())
    expected = cumulative(name, weight, bias, drawn)
    ranks = np.arange(DRAWS)
    distance = max(np.abs(expected - ranks / DRAWS).max(), np.abs(expected - (ranks + 1) / DRAWS).max())
    assert distance < 0.012


@pytest.mark.parametrize(("name", "weight", "bias"), CASES)
def test_levels_rise_from_0_to_1(name: str, weight: float, bias: float) -> None:
    u = torch.linspace(0, 1, 2001, dtype=torch.float64)
    made = noise_level(u, NoiseOptions(name, weight=weight, bias=bias))
    assert torch.isfinite(made).all()
    assert float(made.min()) >= 0 and float(made.max()) <= 1
    assert float(made.diff().min()) >= -1e-12


@pytest.mark.parametrize(
    ("name", "weight", "bias", "share"),
    [("COS_MAP", 0.0, 0.0, 0.205), ("INVERTED_PARABOLA", 7.7, 0.0, 0.161), ("POWER", 3.0, -1.0, 0.63)],
)
def test_share_of_the_lowest_quarter(name: str, weight: float, bias: float, share: float) -> None:
    u = ((torch.arange(DRAWS, dtype=torch.float64) + 0.5) / DRAWS).tolist()
    below = sum(level < 0.25 for level in levels(name, weight, bias, u)) / DRAWS
    assert below == pytest.approx(share, abs=6e-4)


def test_single_values() -> None:
    assert levels("HEAVY_TAIL", 1.29, 0.0, [0.75, 0.5]) == pytest.approx([0.616, 0.5], abs=5e-4)
    assert levels("BETA", 0.5, 1.0, [0.25]) == pytest.approx([0.0625], abs=1e-9)
    assert levels("BETA", 3.0, 1.0, [0.1, 0.9]) == pytest.approx([0.1 ** (1 / 3), 0.9 ** (1 / 3)], abs=1e-6)
    assert levels("INVERTED_PARABOLA", 0.0, 0.0, [0.3]) == pytest.approx([0.3])
    assert all(math.isfinite(level) for level in levels("BETA", 0.0, 3.0, [0.0, 0.5, 1.0]))


@pytest.mark.parametrize(
    ("weight", "bias"), [(700.0, 1.6), (5000.0, 1.0), (-5000.0, -1.0), (1e300, 1.0), (1.0, 1e5)]
)
def test_a_sigmoid_far_from_all_levels_is_an_exponential(weight: float, bias: float) -> None:
    u = [0.0, 0.1, 0.5, 0.9, 1.0]
    if weight > 0:
        expected = [1 + math.log((1 - one) * math.exp(-weight) + one) / weight if one else 0.0 for one in u]
    else:
        expected = [math.log(1 - one + one * math.exp(weight)) / weight if one < 1 else 1.0 for one in u]
    assert levels("SIGMOID", weight, bias, u) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "weight", "bias", "field"),
    [
        ("HEAVY_TAIL", 1.8, 0.0, "noising_weight"),
        ("HEAVY_TAIL", -1.1, 0.0, "noising_weight"),
        ("POWER", 0.5, 0.0, "noising_weight"),
        ("BETA", 0.0, 0.0, "noising_weight"),
        ("INVERTED_PARABOLA", 50.0, 3.0, "noising_bias"),
    ],
)
def test_numbers_without_a_distribution_are_refused(
    name: str, weight: float, bias: float, field: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        NoiseOptions(name, weight=weight, bias=bias)
    assert caught.value.field == field


def test_strata_walk_through_equal_parts() -> None:
    options = NoiseOptions("INVERTED_PARABOLA", weight=7.7, strata=4)
    ids = [f"item {number}" for number in range(50)]
    edges = [0.0, *levels("INVERTED_PARABOLA", 7.7, 0.0, [0.25, 0.5, 0.75]), 1.0]
    found = []
    for visit in range(4):
        drawn = draw_noise(FlowSchedule(), (1, 2, 2), ids, [visit] * 50, options, 1).timestep_B / 1000
        found.append(np.searchsorted(edges, drawn.numpy(), side="right") - 1)
    assert all(sorted(item) == [0, 1, 2, 3] for item in np.stack(found, 1).tolist())


def test_the_range_is_taken_before_or_after_the_shift() -> None:
    u = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    after = noise_level(u, NoiseOptions(shift=3.0, min_strength=0.2, max_strength=0.6))
    before = noise_level(u, NoiseOptions(shift=3.0, min_strength=0.2, max_strength=0.6, range_first=True))
    assert after.tolist() == pytest.approx([0.2, 0.2 + 0.4 * 0.75, 0.6])
    assert before.tolist() == pytest.approx([0.6 / 1.4, 1.2 / 1.8, 1.8 / 2.2])


def test_perturbation_can_be_part_of_the_target() -> None:
    def drawn(**options: float | bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        made = draw_noise(FlowSchedule(), (1, 4, 4), ["a"], [0], NoiseOptions(**options), 1)
        return made.noise_BChw, made.perturbation_BChw

    plain, _ = drawn()
    noise, extra = drawn(perturbation_weight=0.1)
    both, none = drawn(perturbation_weight=0.1, perturb_target=True)
    assert torch.equal(noise, plain) and extra is not None and none is None
    assert torch.equal(both, plain + extra)
