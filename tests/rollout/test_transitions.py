"""Transitions: the marginals they keep, their log-probabilities, temperature, and what they refuse."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.model.noising.sampling import make_sampler
from modules.model.noising.schedule import (
    DiscreteSchedule,
    FlowSchedule,
    Schedule,
    rescale_to_zero_terminal_snr,
)
from modules.rollout import transitions
from modules.rollout.plan import path as path_of
from modules.rollout.transitions import (
    CPS,
    DANCE_SDE,
    DDIM,
    FLOW_SDE,
    ODE,
    Position,
    Transition,
    log_prob,
    mean_gap,
    sample,
    step,
)
from modules.util.errors import ConfigError, UnsupportedError

DATA = 0.5


def table(prediction: str = "v_prediction", zero_snr: bool = False) -> DiscreteSchedule:
    alphas = torch.cumprod(1.0 - torch.linspace(0.00085**0.5, 0.012**0.5, 1000).double() ** 2, 0)
    return DiscreteSchedule(rescale_to_zero_terminal_snr(alphas) if zero_snr else alphas, prediction)  # type: ignore[arg-type]


def path(schedule: Schedule, steps: int, shift: float = 1.0) -> tuple[Position, ...]:
    name = "DDIM" if isinstance(schedule, DiscreteSchedule) else "EULER"
    return path_of(schedule, make_sampler(schedule, name, steps, {"shift": shift}, even=True))


def number(value: float) -> torch.Tensor:
    return torch.full((1, 1, 1, 1), value, dtype=torch.float64)


def exact(prediction: str, at: Position) -> float:
    """The best prediction for x = 1, data N(0, DATA^2): E[target | x] is linear in x."""
    variance = (at.signal * DATA) ** 2 + at.noise**2
    if prediction == "flow":
        return (at.noise - at.signal * DATA**2) / variance
    if prediction == "epsilon":
        return at.noise / variance
    return (at.signal * at.noise - at.noise * at.signal * DATA**2) / variance


def final_std(kind: str, prediction: str, positions, eta: float, tau: float = 1.0) -> float:
    """Standard deviation at the end of a run that starts from unit noise."""
    variance = 1.0
    for at in positions:
        made = step(kind, number(1.0), number(exact(prediction, at)), at, prediction, eta, tau)  # type: ignore[arg-type]
        variance = float(made.mean) ** 2 * variance + made.std**2
    return math.sqrt(variance)


def flow_sde_by_hand(steps: int, eta: float) -> float:
    """The Euler-Maruyama recurrence of the reverse SDE dx = (v - g^2/2 score) dt + g dw, written out."""
    variance, h = 1.0, 1.0 / steps
    for index in range(steps):
        s = 1.0 - index * h
        g2 = eta**2 * s / (1.0 - (s if index else 1.0 - h))
        m = (1 - s) ** 2 * DATA**2 + s**2
        velocity = (s - (1 - s) * DATA**2) / m
        # E[eps | x] = -s * score, and x + (1 - s) v is that expectation
        score = -(1.0 + (1.0 - s) * velocity) / s
        variance = (1.0 - h * (velocity - g2 / 2.0 * score)) ** 2 * variance + g2 * h
    return math.sqrt(variance)


@pytest.mark.parametrize(
    ("kind", "eta", "expected"),
    [
        (FLOW_SDE, 0.7, {10: 0.480, 100: 0.5004, 2000: 0.5007}),
        (DANCE_SDE, 0.3, {10: 0.4416, 100: 0.494, 2000: 0.4997}),
        (CPS, 0.8, {10: 0.352, 100: 0.395, 2000: 0.403}),
        (ODE, 0.0, {10: 0.431, 100: 0.493, 2000: 0.4996}),
    ],
)
def test_marginals_of_flow_runs(kind: str, eta: float, expected: dict[int, float]) -> None:
    for steps, value in expected.items():
        found = final_std(kind, "flow", path(FlowSchedule(), steps), eta)
        assert found == pytest.approx(value, abs=0.6 * 10 ** -(len(str(value)) - 2))
        if kind == FLOW_SDE:
            assert found == pytest.approx(flow_sde_by_hand(steps, eta), rel=1e-5)


def test_the_first_step_of_the_flow_sde_leaves_its_mark_at_any_number_of_steps() -> None:
    eta = 0.7
    at = path(FlowSchedule(), 5000)[0]
    made = step(FLOW_SDE, number(1.0), number(exact("flow", at)), at, "flow", eta)
    variance = float(made.mean) ** 2 + made.std**2
    wanted = (at.signal_next * DATA) ** 2 + at.noise_next**2
    assert variance - wanted == pytest.approx(eta**4 / 4.0, rel=2e-3)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_marginals_of_discrete_runs(prediction: str, eta: float) -> None:
    errors = []
    for steps in (10, 100, 1000):
        positions = path(table(prediction), steps)
        last = positions[-1]
        goal = math.sqrt((last.signal_next * DATA) ** 2 + last.noise_next**2)
        errors.append(abs(final_std(DDIM, prediction, positions, eta) - goal))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 5e-3


def test_epsilon_and_v_are_two_names_for_one_step() -> None:
    generator = torch.Generator().manual_seed(0)
    x, noise = torch.randn(2, 2, 4, 3, 3, generator=generator, dtype=torch.float64)
    for at in path(table(), 10):
        v = (noise - at.noise * x) / at.signal
        one = step(DDIM, x, noise, at, "epsilon", 0.8, 0.9)
        other = step(DDIM, x, v, at, "v_prediction", 0.8, 0.9)
        torch.testing.assert_close(one.mean, other.mean, rtol=1e-9, atol=1e-9)
        assert one.std == other.std


def test_pure_noise_at_the_start() -> None:
    schedule = table(zero_snr=True)
    first = path(schedule, 10)[0]
    assert first.signal == 0.0 and first.timestep == 999
    x, v = number(0.3), number(-0.7)
    made = step(DDIM, x, v, first, "v_prediction", 1.0)
    # all of the next noise is fresh; x_0 = -v
    assert float(made.mean) == pytest.approx(0.7 * first.signal_next)
    assert made.std == pytest.approx(first.noise_next)
    with pytest.raises(ConfigError, match="epsilon"):
        step(DDIM, x, v, first, "epsilon", 1.0)


@pytest.mark.parametrize("kind", [FLOW_SDE, DANCE_SDE, CPS])
def test_without_noise_every_transition_is_the_ode(kind: str) -> None:
    x, v = number(0.3), number(-0.7)
    for at in path(FlowSchedule(), 7, shift=2.0):
        made, plain = step(kind, x, v, at, "flow", 0.0), step(ODE, x, v, at, "flow", 0.0)
        assert made.std == 0.0
        torch.testing.assert_close(made.mean, plain.mean, rtol=1e-12, atol=1e-12)


@given(
    std=st.floats(1e-3, 10.0),
    seed=st.integers(0, 2**31),
    reduction=st.sampled_from(["MEAN", "SUM"]),
)
@settings(deadline=None, max_examples=30)
def test_log_prob_is_torchs(std: float, seed: int, reduction: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, mean = torch.randn(2, 3, 2, 4, 4, generator=generator, dtype=torch.float64)
    wanted = torch.distributions.Normal(mean, std).log_prob(x).flatten(1)
    wanted = wanted.mean(1) if reduction == "MEAN" else wanted.sum(1)
    torch.testing.assert_close(log_prob(x, Transition(mean, std), reduction), wanted, rtol=1e-10, atol=1e-10)


def test_the_squared_error_is_no_density() -> None:
    x, mean = torch.randn(2, 3, 2, 4, 4, dtype=torch.float64)
    found = log_prob(x, Transition(mean, 0.3), form="SQUARED_ERROR")
    torch.testing.assert_close(found, -((x - mean) ** 2).flatten(1).mean(1))


def test_log_prob_of_half_precision_is_computed_in_float32() -> None:
    x = torch.randn(2, 4, 3, 3)
    made = Transition(torch.zeros(2, 4, 3, 3), 0.5)
    stored = sample(made, x, torch.bfloat16)
    assert stored.dtype == torch.bfloat16
    found = log_prob(stored, made)
    assert found.dtype == torch.float32
    assert torch.equal(found, log_prob(stored.float(), made))


@given(rollout=st.floats(0.2, 3.0), trained=st.floats(0.2, 3.0))
@settings(deadline=None, max_examples=30)
def test_temperatures_that_differ_show_in_the_ratio(rollout: float, trained: float) -> None:
    """log-ratio = mean(z^2)/2 (1 - (tau_r/tau_l)^2) + log(tau_r/tau_l), with means unchanged."""
    generator = torch.Generator().manual_seed(1)
    x, v, z = torch.randn(3, 2, 4, 3, 3, generator=generator, dtype=torch.float64)
    at = path(FlowSchedule(), 10)[4]
    old = step(FLOW_SDE, x, v, at, "flow", 0.7, rollout)
    new = step(FLOW_SDE, x, v, at, "flow", 0.7, trained)
    assert torch.equal(old.mean, new.mean)
    drawn = sample(old, z, torch.float64)
    ratio_B = log_prob(drawn, new) - log_prob(drawn, old)
    scale = rollout / trained
    wanted_B = z.square().flatten(1).mean(1) / 2.0 * (1.0 - scale**2) + math.log(scale)
    torch.testing.assert_close(ratio_B, wanted_B, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("reduction", ["MEAN", "SUM"])
def test_regulated_ratios_are_the_noise_times_the_change_of_the_mean(reduction: str) -> None:
    """log-ratio = k (logp_new - logp_old) + gap / (2 k) = mean or sum of z (mu_new - mu_old), which is 0 on average."""
    generator = torch.Generator().manual_seed(1)
    mean, change, z = torch.randn(3, 2, 4, 3, 3, generator=generator, dtype=torch.float64)
    old, new = Transition(mean, 0.3), Transition(mean + 0.1 * change, 0.3)
    drawn = sample(old, z, torch.float64)
    difference_B = log_prob(drawn, new, reduction) - log_prob(drawn, old, reduction)
    found_B = old.std * difference_B + mean_gap(new.mean, old.mean, reduction) / (2.0 * old.std)
    wanted_BD = (z * 0.1 * change).flatten(1)
    wanted_B = wanted_BD.mean(1) if reduction == "MEAN" else wanted_BD.sum(1)
    torch.testing.assert_close(found_B, wanted_B, rtol=1e-10, atol=1e-10)


def test_temperature_narrows_the_images_and_the_noise_level_does_not() -> None:
    positions = path(FlowSchedule(), 2000)
    assert final_std(FLOW_SDE, "flow", positions, 0.7, 0.8) == pytest.approx(0.40, abs=5e-3)
    assert final_std(FLOW_SDE, "flow", positions, 0.7 * 0.8) == pytest.approx(0.50, abs=5e-3)


def test_what_is_refused() -> None:
    x, at, discrete = number(0.0), path(FlowSchedule(), 4)[1], path(table(), 4)[1]
    with pytest.raises(UnsupportedError, match="DDIM is not a transition"):
        step(DDIM, x, x, at, "flow", 1.0)
    with pytest.raises(UnsupportedError, match="use DDIM or ODE"):
        step(FLOW_SDE, x, x, discrete, "epsilon", 1.0)
    with pytest.raises(ConfigError, match="unknown transition 'SDE'"):
        step("SDE", x, x, at, "flow", 1.0)
    for tau in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="rollout_temperature"):
            step(FLOW_SDE, x, x, at, "flow", 0.7, tau)
    for eta in (-0.1, math.nan, math.inf):
        with pytest.raises(ConfigError, match="rollout_noise_level"):
            step(FLOW_SDE, x, x, at, "flow", eta)
    for kind, prediction, place in ((CPS, "flow", at), (DDIM, "epsilon", path(table(), 1000)[5])):
        with pytest.raises(ConfigError, match="up to 1"):
            step(kind, x, x, place, prediction, 30.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="without noise"):
        log_prob(x, Transition(x, 0.0))
    with pytest.raises(ConfigError, match="unknown reduction"):
        log_prob(x, Transition(x, 1.0), "max")
    with pytest.raises(ConfigError, match="unknown form"):
        log_prob(x, Transition(x, 1.0), "MEAN", "laplace")
    with pytest.raises(ValueError, match="two noise levels of 1"):
        step(FLOW_SDE, x, x, Position(1000.0, 0.0, 1.0, 0.0, 1.0, 1.0), "flow", 0.7)
    assert transitions.deviation(FLOW_SDE, path(FlowSchedule(), 1)[0], 0.7) < 1.0


def test_a_model_that_predicts_the_image_is_refused() -> None:
    at = path(table(), 10)[5]
    x = torch.zeros(1, 4, 2, 2)
    with pytest.raises(UnsupportedError, match="predicts 'sample'"):
        step(DDIM, x, x, at, "sample", 0.5)  # type: ignore[arg-type]
