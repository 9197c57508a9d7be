"""The sampling loop on models whose answer is known."""

from __future__ import annotations

import pytest
import torch

from modules.model.noising.sampling import (
    DISCRETE,
    SamplingCancelled,
    from_last_timestep,
    initial_noise,
    make_sampler,
    run_sampler,
)
from modules.model.noising.schedule import DiscreteSchedule, FlowSchedule
from modules.util.errors import ConfigError, UnsupportedError

CONFIG = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
CLEAN = torch.full((1, 4, 4, 4), 0.7)


def perfect(schedule: DiscreteSchedule):
    """A denoiser that knows the one image there is; timesteps between the grid's are rounded."""

    def denoise(x_BChw: torch.Tensor, t_B: torch.Tensor) -> torch.Tensor:
        signal, sigma = schedule.coefficients(t_B.round().long())
        signal, sigma = float(signal[0]), float(sigma[0])
        if schedule.prediction == "epsilon":
            return (x_BChw - signal * CLEAN) / sigma
        noise = (x_BChw - signal * CLEAN) / sigma
        return signal * noise - sigma * CLEAN

    return denoise


@pytest.mark.parametrize("name", list(DISCRETE))
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_a_perfect_model_gives_the_image(name: str, prediction: str) -> None:
    schedule = DiscreteSchedule.from_config(CONFIG, prediction)
    noise, generators = initial_noise([3], (4, 4, 4))
    out = run_sampler(make_sampler(schedule, name, 30, CONFIG), perfect(schedule), noise, generators)
    assert torch.allclose(out, CLEAN, atol=0.12), float((out - CLEAN).abs().max())


@pytest.mark.parametrize("name", ["DDIM", "EULER", "EULER_A", "DPMPP"])
def test_zero_terminal_snr_starts_at_the_last_step(name: str) -> None:
    schedule = DiscreteSchedule.from_config(CONFIG, "v_prediction", zero_terminal_snr=True)
    sampler = make_sampler(schedule, name, 10, CONFIG)
    assert float(sampler.timesteps[0]) == 999.0
    noise, generators = initial_noise([3], (4, 4, 4))
    out = run_sampler(sampler, perfect(schedule), noise, generators)
    assert torch.isfinite(out).all()
    assert torch.allclose(out, CLEAN, atol=0.12)


def test_flow_follows_a_constant_velocity_exactly() -> None:
    noise, generators = initial_noise([3], (4, 4, 4))
    velocity = noise - CLEAN
    for steps in (1, 7):
        sampler = make_sampler(FlowSchedule(), "EULER", steps, {"shift": 3.0})
        out = run_sampler(sampler, lambda x, t: velocity, noise, generators)
        assert torch.allclose(out, CLEAN, atol=1e-5)


def test_noise_depends_on_the_seed_alone() -> None:
    both, _ = initial_noise([1, 2], (4, 4, 4))
    alone, _ = initial_noise([2], (4, 4, 4))
    assert torch.equal(both[1:], alone)
    expected = torch.randn((1, 4, 4, 4), generator=torch.Generator().manual_seed(2))
    assert torch.equal(alone, expected)


def test_progress_counts_and_cancels() -> None:
    schedule = DiscreteSchedule.from_config(CONFIG)
    noise, generators = initial_noise([3], (4, 4, 4))
    seen: list[tuple[int, int]] = []

    def stop_at_two(done: int, total: int) -> bool:
        seen.append((done, total))
        return done < 2

    with pytest.raises(SamplingCancelled):
        run_sampler(make_sampler(schedule, "DDIM", 5), perfect(schedule), noise, generators, stop_at_two)
    assert seen == [(1, 5), (2, 5)]


def test_every_name_of_the_enum_is_known() -> None:
    from modules.util.enum.choices import NoiseScheduler

    for name in NoiseScheduler:
        if name is not NoiseScheduler.AUTO:
            assert len(make_sampler(DiscreteSchedule.from_config(CONFIG), name, 3).timesteps) >= 3
    # AUTO is settled by the family before
    with pytest.raises(ConfigError, match="unknown sampler 'AUTO'") as caught:
        make_sampler(DiscreteSchedule.from_config(CONFIG), NoiseScheduler.AUTO, 3)
    assert set(str(caught.value.hint).removeprefix("known: ").split(", ")) == set(NoiseScheduler) - {"AUTO"}


def test_impossible_samplers_are_refused() -> None:
    schedule = DiscreteSchedule.from_config(CONFIG)
    with pytest.raises(ConfigError, match="unknown sampler 'HEUN'"):
        make_sampler(schedule, "HEUN", 5)
    with pytest.raises(ConfigError, match="at least one step"):
        make_sampler(schedule, "DDIM", 0)
    with pytest.raises(ConfigError, match="at most 1000"):
        make_sampler(schedule, "DDIM", 2000)
    with pytest.raises(UnsupportedError, match="flow-matching") as caught:
        make_sampler(FlowSchedule(), "DDIM", 5)
    assert caught.value.hint == "use EULER or DPMPP or UNIPC"
    for name in ("EULER", "DPMPP", "UNIPC"):
        assert len(make_sampler(FlowSchedule(), name, 4).timesteps) == 4


def test_spacing_of_a_flow_models_own_config() -> None:
    config = {"shift": 3.0}
    plain = make_sampler(FlowSchedule(), "EULER", 5, config, even=True).sigmas
    karras = make_sampler(FlowSchedule(), "EULER", 5, config | {"use_karras_sigmas": True}, even=True).sigmas
    assert len(plain) == len(karras) == 6
    # the same ends, and steps that grow smaller towards the image
    assert torch.allclose(plain[[0, -2, -1]], karras[[0, -2, -1]]) and (karras[1:4] < plain[1:4] - 0.01).all()


@pytest.mark.parametrize("name", list(DISCRETE))
def test_samples_start_at_the_last_timestep_where_that_is_wanted(name: str) -> None:
    schedule = DiscreteSchedule.from_config(CONFIG)
    usual = make_sampler(schedule, name, 10, CONFIG | {"timestep_spacing": "leading"})
    forced = from_last_timestep(usual, schedule, 10)
    assert float(forced.timesteps[0]) == 999.0
    assert len(forced.timesteps) == len(usual.timesteps)
    noise, generators = initial_noise([3], (4, 4, 4))
    assert torch.isfinite(run_sampler(forced, perfect(schedule), noise, generators)).all()


def test_flow_models_start_at_noise_anyway() -> None:
    sampler = make_sampler(FlowSchedule(), "EULER", 4, {"shift": 3.0})
    assert from_last_timestep(sampler, FlowSchedule(), 4) is sampler
    assert float(sampler.timesteps[0]) == 1000.0
