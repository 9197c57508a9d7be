"""Noise schedules against diffusers' own and against their definitions."""

from __future__ import annotations

import pytest
import torch
from diffusers.schedulers.scheduling_ddim import DDIMScheduler, rescale_zero_terminal_snr
from hypothesis import given
from hypothesis import strategies as st

from modules.model.noising.schedule import DiscreteSchedule, FlowSchedule, rescale_to_zero_terminal_snr
from modules.util.errors import ConfigError, DataError
from tests.model.noising.formulas import clean_from

CONFIG = {
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
}
STEPS = torch.tensor([0, 1, 250, 500, 999])


def latents(seed: int, count: int = 5) -> torch.Tensor:
    return torch.randn(count, 4, 8, 8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["scaled_linear", "linear", "squaredcos_cap_v2"])
def test_noising_agrees_with_diffusers(kind: str) -> None:
    config = CONFIG | {"beta_schedule": kind}
    ours = DiscreteSchedule.from_config(config, "v_prediction")
    theirs = DDIMScheduler(**config, prediction_type="v_prediction")
    clean, noise = latents(0), latents(1)
    assert torch.allclose(
        ours.add_noise(clean, noise, STEPS), theirs.add_noise(clean, noise, STEPS), atol=1e-4
    )
    assert torch.allclose(
        ours.target(clean, noise, STEPS), theirs.get_velocity(clean, noise, STEPS), atol=1e-4
    )


def test_explicit_betas_are_used() -> None:
    schedule = DiscreteSchedule.from_config({"trained_betas": [0.1, 0.2]})
    assert schedule.steps == 2
    assert schedule.alphas_cumprod_T.tolist() == pytest.approx([0.9, 0.72])


def test_epsilon_target_is_the_noise() -> None:
    schedule = DiscreteSchedule.from_config(CONFIG)
    assert schedule.prediction == "epsilon"
    assert torch.equal(schedule.target(latents(0), latents(1), STEPS), latents(1))


def test_half_precision_latents_are_widened() -> None:
    schedule = DiscreteSchedule.from_config(CONFIG, "v_prediction")
    half, noise = latents(0).bfloat16(), latents(1)
    assert schedule.add_noise(half, noise, STEPS).dtype == torch.float32
    assert schedule.target(half, noise, STEPS).dtype == torch.float32
    assert schedule.add_noise(half.double(), noise.double(), STEPS).dtype == torch.float64


def test_zero_terminal_snr() -> None:
    schedule = DiscreteSchedule.from_config(CONFIG, "v_prediction", zero_terminal_snr=True)
    plain = DiscreteSchedule.from_config(CONFIG)
    assert float(schedule.alphas_cumprod_T[-1]) == 0.0
    assert float(schedule.alphas_cumprod_T[0]) == pytest.approx(float(plain.alphas_cumprod_T[0]))
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
    theirs = torch.cumprod(1.0 - rescale_zero_terminal_snr(betas), dim=0)
    assert torch.allclose(schedule.alphas_cumprod_T.float(), theirs, atol=1e-5)
    again = rescale_to_zero_terminal_snr(schedule.alphas_cumprod_T)
    assert torch.allclose(again, schedule.alphas_cumprod_T)
    last = torch.full((5,), 999)
    assert torch.equal(schedule.add_noise(latents(0), latents(1), last), latents(1))


def test_zero_terminal_snr_is_read_from_the_config() -> None:
    config = CONFIG | {"rescale_betas_zero_snr": True, "prediction_type": "v_prediction"}
    assert float(DiscreteSchedule.from_config(config).alphas_cumprod_T[-1]) == 0.0


def test_epsilon_cannot_end_in_pure_noise() -> None:
    with pytest.raises(ConfigError, match="epsilon prediction"):
        DiscreteSchedule.from_config(CONFIG, "epsilon", zero_terminal_snr=True)


def test_unknown_schedules_are_refused() -> None:
    with pytest.raises(DataError, match="'sigmoid'"):
        DiscreteSchedule.from_config(CONFIG | {"beta_schedule": "sigmoid"})
    with pytest.raises(DataError, match="'sample'"):
        DiscreteSchedule.from_config(CONFIG | {"prediction_type": "sample"})


@pytest.mark.parametrize(
    "schedule",
    [
        DiscreteSchedule.from_config(CONFIG),
        DiscreteSchedule.from_config(CONFIG, "v_prediction"),
        DiscreteSchedule.from_config(CONFIG, "v_prediction", zero_terminal_snr=True),
        FlowSchedule(),
    ],
    ids=["epsilon", "v", "v-zero-snr", "flow"],
)
@given(fraction=st.floats(0.0, 0.95), seed=st.integers(0, 1000))
def test_the_target_inverts_the_noising(schedule, fraction: float, seed: int) -> None:
    t = schedule.timestep(torch.tensor([fraction]))
    clean, noise = latents(seed, 1).double(), latents(seed + 1, 1).double()
    noisy = schedule.add_noise(clean, noise, t)
    back = clean_from(schedule, noisy, schedule.target(clean, noise, t), t)
    assert torch.allclose(back, clean, atol=1e-6)
    signal, sigma = schedule.coefficients(t)
    if isinstance(schedule, DiscreteSchedule):
        assert float(signal**2 + sigma**2) == pytest.approx(1.0)


def test_snr_is_signal_over_noise() -> None:
    schedule = DiscreteSchedule.from_config(CONFIG)
    alpha = schedule.alphas_cumprod_T[STEPS]
    assert torch.allclose(schedule.snr(STEPS), (alpha / (1 - alpha)).float())
    assert (schedule.snr(STEPS).diff() < 0).all()


@pytest.mark.parametrize("schedule", [DiscreteSchedule.from_config(CONFIG), FlowSchedule()])
def test_timesteps_stay_in_range(schedule) -> None:
    t = schedule.timestep(torch.tensor([0.0, 0.5, 0.999999999, 1.0], dtype=torch.float64))
    assert t[0] == 0 and t.max() < 1000
    assert float(t[1]) == 500.0
    assert t.dtype == (torch.int64 if isinstance(schedule, DiscreteSchedule) else torch.float32)


def test_flow_is_a_straight_line() -> None:
    schedule = FlowSchedule()
    clean, noise = latents(0, 1), latents(1, 1)
    t = torch.tensor([250.0])
    assert torch.allclose(schedule.add_noise(clean, noise, t), 0.75 * clean + 0.25 * noise)
    assert torch.equal(schedule.target(clean, noise, t), noise - clean)


def test_flow_coefficients_need_no_float64_on_a_device_without() -> None:
    class OnApple:
        device = torch.device("mps")

        def cpu(self) -> torch.Tensor:
            return torch.tensor([250.0])

        def double(self) -> torch.Tensor:
            raise TypeError("the MPS framework does not support float64")

    signal_B, sigma_B = FlowSchedule().coefficients(OnApple())  # type: ignore[arg-type]
    assert (signal_B.item(), sigma_B.item()) == (0.75, 0.25)
