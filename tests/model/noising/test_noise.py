"""Draws depend on the item and its turn alone, and have the distribution asked for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.model.batch import NoiseDraw
from modules.model.noising.noise import NoiseOptions, draw_noise, noise_level, stratum_of
from modules.model.noising.schedule import DiscreteSchedule, FlowSchedule
from modules.util.errors import ConfigError

SCHEDULE = DiscreteSchedule.from_config({})
SHAPE = (4, 4, 4)


def draw(ids: list[str], visits: list[int] | None = None, options: NoiseOptions | None = None, **more):
    return draw_noise(
        SCHEDULE, SHAPE, ids, visits or [0] * len(ids), options or NoiseOptions(), more.pop("seed", 1), **more
    )


@given(
    ids=st.lists(st.text(max_size=5), min_size=1, max_size=5),
    strata=st.integers(0, 5),
    offset=st.sampled_from([0.0, 0.1]),
)
@settings(max_examples=40, deadline=None)
def test_company_does_not_matter(ids: list[str], strata: int, offset: float) -> None:
    options = NoiseOptions(strata=strata, offset_weight=offset, perturbation_weight=0.1, caption_dropout=0.3)
    together = draw(ids, list(range(len(ids))), options)
    for index, name in enumerate(ids):
        alone = draw([name], [index], options)
        assert torch.equal(alone.noise_BChw[0], together.noise_BChw[index])
        assert torch.equal(alone.perturbation_BChw[0], together.perturbation_BChw[index])
        assert alone.timestep_B[0] == together.timestep_B[index]
        assert alone.drop_caption_B[0] == together.drop_caption_B[index]


def test_everything_in_the_key_matters_and_nothing_else() -> None:
    first = draw(["a"])
    torch.manual_seed(99)
    assert torch.equal(draw(["a"]).noise_BChw, first.noise_BChw)
    others = [
        draw(["b"]),
        draw(["a"], [1]),
        draw(["a"], seed=2),
        draw(["a"], stream="validation"),
        draw(["a"], key=(1,)),
    ]
    for other in others:
        assert not torch.equal(other.noise_BChw, first.noise_BChw)


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    draw(["a", "b"], options=NoiseOptions(offset_weight=1.0, perturbation_weight=1.0))
    assert torch.equal(torch.rand(3), expected)


@given(start=st.integers(0, 50), strata=st.integers(1, 8), item=st.text(max_size=4))
@settings(max_examples=60, deadline=None)
def test_every_stratum_once_in_each_round(start: int, strata: int, item: str) -> None:
    first = start * strata
    visited = [stratum_of(first + i, strata, "noise", 7, item) for i in range(strata)]
    assert sorted(visited) == list(range(strata))


def test_rounds_have_orders_of_their_own() -> None:
    orders = {tuple(stratum_of(8 * r + i, 8, "noise", 7, "x") for i in range(8)) for r in range(6)}
    assert len(orders) > 1


def test_strata_cover_their_share_of_the_timesteps() -> None:
    options = NoiseOptions(strata=4)
    steps = sorted(int(draw(["a"], [visit], options).timestep_B[0]) // 250 for visit in range(4))
    assert steps == [0, 1, 2, 3]
    for index in range(4):
        fixed = draw(["a", "b"], options=options, stratum=index)
        assert (fixed.timestep_B // 250 == index).all()
    with pytest.raises(ValueError, match="stratum 4 of 4"):
        draw(["a"], options=options, stratum=4)


def test_a_pool_repeats() -> None:
    options = NoiseOptions(pool=3, strata=3)
    draws = [draw(["a"], [visit], options) for visit in range(6)]
    for visit in range(3):
        assert torch.equal(draws[visit].noise_BChw, draws[visit + 3].noise_BChw)
        assert draws[visit].timestep_B == draws[visit + 3].timestep_B
    assert len({int(d.timestep_B[0]) // 334 for d in draws}) == 3


@given(
    distribution=st.sampled_from(["UNIFORM", "SIGMOID", "LOGIT_NORMAL"]),
    weight=st.floats(-0.9, 20.0),
    bias=st.floats(-1.0, 1.0),
    shift=st.floats(0.1, 10.0),
    low=st.floats(0.0, 0.4),
    high=st.floats(0.5, 1.0),
)
def test_levels_rise_within_the_range(distribution, weight, bias, shift, low, high) -> None:
    options = NoiseOptions(distribution, weight, bias, shift, low, high)
    levels = noise_level(torch.linspace(0.0, 1.0, 101, dtype=torch.float64), options)
    assert torch.isfinite(levels).all()
    assert (levels.diff() >= -1e-9).all()
    assert float(levels[0]) >= low - 1e-9 and float(levels[-1]) <= high + 1e-9


def test_distributions_have_their_densities() -> None:
    u = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    sigmoid = noise_level(u, NoiseOptions("SIGMOID", weight=6.0, bias=0.1))
    counts = torch.histc(sigmoid, 10, 0.0, 1.0)
    edges = torch.linspace(0.0, 1.0, 11, dtype=torch.float64)
    mass = torch.nn.functional.softplus(6.0 * (edges - 0.6)).diff()
    assert torch.allclose(counts / counts.sum(), mass / mass.sum(), atol=1e-3)
    normal = torch.logit(noise_level(u, NoiseOptions("LOGIT_NORMAL", weight=0.5, bias=-0.3)))
    assert float(normal.mean()) == pytest.approx(-0.3, abs=1e-2)
    assert float(normal.std()) == pytest.approx(1.5, abs=1e-2)
    uniform = noise_level(u, NoiseOptions(min_strength=0.2, max_strength=0.6))
    assert float(uniform.mean()) == pytest.approx(0.4, abs=1e-3)
    shifted = noise_level(torch.tensor([0.5]), NoiseOptions(shift=3.0))
    assert float(shifted) == pytest.approx(0.75)


def test_offset_and_perturbation() -> None:
    plain = draw(["a"])
    offset = draw(["a"], options=NoiseOptions(offset_weight=0.5))
    difference = offset.noise_BChw - plain.noise_BChw
    assert difference.abs().max() > 0
    assert torch.allclose(difference, difference[..., :1, :1].expand_as(difference), atol=1e-6)
    perturbed = draw(["a"], options=NoiseOptions(perturbation_weight=0.1))
    assert torch.equal(perturbed.noise_BChw, plain.noise_BChw)
    assert 0.05 < float(perturbed.perturbation_BChw.std()) < 0.15


def test_flow_timesteps_are_continuous() -> None:
    t = draw_noise(FlowSchedule(), SHAPE, ["a", "b"], [0, 0], NoiseOptions(), 1).timestep_B
    assert t.dtype == torch.float32 and (t != t.round()).any()


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"distribution": "GAUSS"}, "timestep_distribution"),
        ({"min_strength": 0.7, "max_strength": 0.3}, "min_noising_strength"),
        ({"max_strength": 1.5}, "min_noising_strength"),
        ({"shift": 0.0}, "timestep_shift"),
        ({"distribution": "LOGIT_NORMAL", "weight": -1.0}, "noising_weight"),
    ],
)
def test_bad_options_are_refused(values: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NoiseOptions(**values)
    assert caught.value.field == field


def test_an_offset_by_noise_level_is_balanced_between_noise_and_target() -> None:
    """A chain in which step t adds c_t times the offset: its share of the noise so far equals its share of what the
    reverse step has to remove, and is 1 in the end.
    """
    beta_T = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64).square()
    alpha_T = torch.cumprod(1 - beta_T, dim=0)
    schedule = DiscreteSchedule(alpha_T, "epsilon")
    share_T = schedule.offset_share(torch.arange(1000))
    shift = 0.0
    for t in range(1000):
        # the share of the target is c_t sqrt(1 - a_t) / beta_t, from the mean of q(x_t-1 | x_t, x_0, offset)
        added = float(share_T[t] * beta_T[t] / (1 - alpha_T[t]).sqrt())
        shift = float((1 - beta_T[t]).sqrt()) * shift + added
        assert shift == pytest.approx(float(share_T[t] * (1 - alpha_T[t]).sqrt()), rel=1e-9)
    assert float(share_T[-1]) == 1.0 and 0 < float(share_T[0]) < 0.01


def test_an_offset_by_noise_level_is_the_offset_times_its_share() -> None:
    names, shape = ["a", "b", "c"], (4, 8, 8)
    schedule = DiscreteSchedule(torch.linspace(0.99, 0.01, 50), "epsilon")

    def made(**options: float) -> NoiseDraw:
        return draw_noise(schedule, shape, names, [0, 0, 0], NoiseOptions(**options), 3)  # type: ignore[arg-type]

    plain, whole, shared = made(), made(offset_weight=0.5), made(offset_weight=0.5, offset_by_level=True)
    assert torch.equal(plain.timestep_B, shared.timestep_B)
    share_B111 = schedule.offset_share(plain.timestep_B).float().view(-1, 1, 1, 1)
    expected = share_B111 * (whole.noise_BChw - plain.noise_BChw)
    torch.testing.assert_close(shared.noise_BChw - plain.noise_BChw, expected, rtol=1e-4, atol=1e-6)
    ends = [DiscreteSchedule(torch.tensor([0.5, last]), "v_prediction") for last in (0.0, 9e-7)]
    for none in (FlowSchedule(), *ends):
        with pytest.raises(ConfigError) as caught:
            none.offset_share(torch.tensor([0]))
        assert caught.value.field == "generalized_offset_noise"
