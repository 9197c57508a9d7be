"""One denoising step as a Gaussian: where it leads, how much noise it adds and how likely an outcome is.

x, predictions and means are (B, C, h, w); arithmetic is float32, or float64 where x is. Step sizes and standard
deviations are Python floats: every image of a batch is at the same step of the same path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from modules.model.batch import to_float32
from modules.spec.FamilySpec import Prediction
from modules.util.errors import ConfigError, UnsupportedError

AUTO = "AUTO"
FLOW_SDE, DANCE_SDE, CPS, DDIM, ODE = "FLOW_SDE", "DANCE_SDE", "CPS", "DDIM", "ODE"
KINDS = (FLOW_SDE, DANCE_SDE, CPS, DDIM, ODE)
FLOW_KINDS = (FLOW_SDE, DANCE_SDE, CPS, ODE)
DISCRETE_KINDS = (DDIM, ODE)

DEFAULT_NOISE_LEVEL: Mapping[str, float] = {FLOW_SDE: 0.7, DANCE_SDE: 0.3, CPS: 0.8, DDIM: 1.0, ODE: 0.0}
"""CPS has no limit of small steps: its noise level is the sine of an angle, not a diffusion strength."""

_PURE = 1.0 - 1e-6
"""Above this a noise level is pure noise up to the rounding of the sampler's table."""

MEAN, SUM = "MEAN", "SUM"
REDUCTIONS = (MEAN, SUM)
GAUSSIAN, SQUARED_ERROR = "GAUSSIAN", "SQUARED_ERROR"
FORMS = (GAUSSIAN, SQUARED_ERROR)


@dataclass(frozen=True)
class Position:
    """One step of a path on which x = signal * x_0 + noise * eps.

    Args:
        timestep: the timestep given to the denoiser.
        signal, noise: factors at the start of the step.
        signal_next, noise_next: factors at its end.
        safe: the noise level that the Flow-SDE uses for 1 - sigma; the path's second one if the step begins
            at 1.
    """

    timestep: float
    signal: float
    noise: float
    signal_next: float
    noise_next: float
    safe: float

    @property
    def dt(self) -> float:
        """Change of the noise level, below 0."""
        return self.noise_next - self.noise


@dataclass(frozen=True)
class Transition:
    """A normal distribution over the next latents.

    Args:
        mean: (B, C, h, w).
        std: its standard deviation, with temperature; 0 for a step that adds no noise.
    """

    mean: torch.Tensor
    std: float


def deviation(kind: str, position: Position, noise_level: float, temperature: float = 1.0) -> float:
    """Standard deviation of a step.

    Args:
        noise_level: eta of the transition; the means depend on it too, so that marginals are kept.
        temperature: multiplies only the standard deviation, which narrows or widens the marginals.

    Raises:
        ConfigError: a noise level below 0, a temperature that is not above 0, or one of them NaN or infinite.
    """
    if not (math.isfinite(temperature) and temperature > 0.0):
        raise ConfigError(
            f"must be finite and greater than 0, not {temperature}", field="rlhf_rollout_temperature"
        )
    if not (math.isfinite(noise_level) and noise_level >= 0.0):
        raise ConfigError(
            f"must be finite and at least 0, not {noise_level}", field="rlhf_rollout_noise_level"
        )
    return temperature * _STD[_known(kind)](position, noise_level)


def name_of(value: object) -> str:
    """The text of an enum member, or the text itself."""
    return str(getattr(value, "value", value))


def known_name(what: str, value: object, known: Sequence[str], field: str) -> str:
    """``name_of`` a value.

    Raises:
        ConfigError: it is not one of those known.
    """
    name = name_of(value)
    if name not in known:
        raise ConfigError(f"unknown {what} {name!r}", field=field, hint=f"known: {', '.join(known)}")
    return name


def check_kind(kind: object, prediction: Prediction) -> str:
    """The name of a transition that suits a model of this parameterisation; AUTO is its usual one.

    Raises:
        ConfigError: the name is unknown.
        UnsupportedError: the transition does not suit such a model.
    """
    if name_of(kind) == AUTO:
        return FLOW_SDE if prediction == "flow" else DDIM
    name = _known(kind)
    allowed = FLOW_KINDS if prediction == "flow" else DISCRETE_KINDS
    if name not in allowed:
        raise UnsupportedError(
            f"{name} is not a transition of a model that predicts {prediction}",
            field="rlhf_rollout_transition",
            hint=f"use {' or '.join(allowed)}",
        )
    return name


def _known(kind: object) -> str:
    return known_name("transition", kind, KINDS, "rlhf_rollout_transition")


def step(
    kind: str,
    x: torch.Tensor,
    predicted: torch.Tensor,
    position: Position,
    prediction: Prediction,
    noise_level: float,
    temperature: float = 1.0,
) -> Transition:
    """The distribution of the next latents.

    Args:
        kind: FLOW_SDE (Flow-GRPO, arXiv 2505.05470), DANCE_SDE (DanceGRPO, arXiv 2505.07818), CPS
            (coefficients-preserving sampling), DDIM (Song et al. 2020, arXiv 2010.02502) or ODE.
        predicted: the (guided) output of the denoiser.
        prediction: what the denoiser predicts.

    Raises:
        UnsupportedError: a flow transition with a discrete schedule, or the other way round.
        ConfigError: a number is out of range, or epsilon prediction is used at pure noise.
    """
    kind = check_kind(kind, prediction)
    std = deviation(kind, position, noise_level, temperature)
    x, predicted = to_float32(x), to_float32(predicted)
    if prediction == "flow":
        return Transition(_FLOW_MEAN[kind](x, predicted, position, noise_level), std)
    if prediction not in _DISCRETE_MEAN:
        raise UnsupportedError(
            f"a model that predicts {prediction!r} cannot make images to learn from",
            field="base_model_name",
            hint="use a model that predicts epsilon or v",
        )
    mean = _DISCRETE_MEAN[prediction]
    # the temperature changes what is drawn, not the mean
    return Transition(mean(x, predicted, position, _STD[kind](position, noise_level)), std)


# -- the transitions: with each how much noise it adds and where it leads ----------------------------------------
#
# Flow models move on x = (1 - s) x_0 + s eps and predict v = eps - x_0; ``dt`` is the change of s and below 0.
# Every mean is made so that x has the right distribution at the next level, whatever eta is.


def _ode_std(at: Position, eta: float) -> float:
    return 0.0


def _ode_mean(x: torch.Tensor, v: torch.Tensor, at: Position, eta: float) -> torch.Tensor:
    """x + v dt"""
    return x + v * at.dt


def _flow_sde_std(at: Position, eta: float) -> float:
    """g sqrt(-dt)"""
    return _flow_strength(at, eta) * math.sqrt(-at.dt)


def _flow_sde_mean(x: torch.Tensor, v: torch.Tensor, at: Position, eta: float) -> torch.Tensor:
    """x + (v + g^2 / (2 s) (x + (1 - s) v)) dt"""
    pull = _flow_strength(at, eta) ** 2 / (2.0 * at.noise)
    return x * (1.0 + pull * at.dt) + v * ((1.0 + pull * (1.0 - at.noise)) * at.dt)


def _flow_strength(at: Position, eta: float) -> float:
    """g = eta sqrt(s / (1 - s)); 1 - s would be 0 at pure noise, so the next level is used instead."""
    sigma = at.noise
    safe = at.safe if sigma > _PURE else sigma
    if safe > _PURE:
        raise ValueError("the path has two noise levels of 1: the Flow-SDE has no limit there")
    return eta * math.sqrt(sigma / (1.0 - safe))


def _dance_std(at: Position, eta: float) -> float:
    """eta sqrt(-dt)"""
    return eta * math.sqrt(-at.dt)


def _dance_mean(x: torch.Tensor, v: torch.Tensor, at: Position, eta: float) -> torch.Tensor:
    """x + (v + eta^2 / (2 s^2) (x - (1 - s) x_0)) dt"""
    clean = x - at.noise * v
    pull = 0.5 * eta**2 / at.noise**2
    return x + (v + pull * (x - at.signal * clean)) * at.dt


def _cps_std(at: Position, eta: float) -> float:
    """s' sin(eta pi / 2)"""
    if eta > 1.0:
        raise ConfigError(f"CPS takes a noise level up to 1, not {eta}", field="rlhf_rollout_noise_level")
    return at.noise_next * math.sin(eta * math.pi / 2.0)


def _cps_mean(x: torch.Tensor, v: torch.Tensor, at: Position, eta: float) -> torch.Tensor:
    """(1 - s') x_0 + sqrt(s'^2 - std^2) eps"""
    return _coefficients_kept(x - at.noise * v, x + at.signal * v, at, _cps_std(at, eta))


def _ddim_std(at: Position, eta: float) -> float:
    """eta sqrt((1 - a') / (1 - a) (1 - a / a')) with a = signal^2"""
    a, a_next = at.signal**2, at.signal_next**2
    variance = (1.0 - a_next) / (1.0 - a) * (1.0 - a / a_next)
    # at a level equal to its successor, rounding can give a value slightly below 0
    std = eta * math.sqrt(max(variance, 0.0))
    if std**2 > (1.0 - a_next) * (1.0 + 1e-9):
        raise ConfigError(
            f"DDIM cannot add noise of standard deviation {std:.4g} where the path has {at.noise_next:.4g}",
            field="rlhf_rollout_noise_level",
            hint="use a noise level up to 1",
        )
    return std


def _epsilon_mean(x: torch.Tensor, noise: torch.Tensor, at: Position, std: float) -> torch.Tensor:
    """sqrt(a') x_0 + sqrt(1 - a' - std^2) eps, with x_0 = (x - sqrt(1 - a) eps) / sqrt(a)"""
    if at.signal == 0.0:
        raise ConfigError(
            "at pure noise the image cannot be computed from epsilon",
            field="rescale_noise_scheduler_to_zero_terminal_snr",
            hint="use a v-prediction model",
        )
    return _coefficients_kept((x - at.noise * noise) / at.signal, noise, at, std)


def _velocity_mean(x: torch.Tensor, v: torch.Tensor, at: Position, std: float) -> torch.Tensor:
    """The same with x_0 = sqrt(a) x - sqrt(1 - a) v and eps = sqrt(a) v + sqrt(1 - a) x"""
    return _coefficients_kept(at.signal * x - at.noise * v, at.signal * v + at.noise * x, at, std)


def _coefficients_kept(clean: torch.Tensor, noise: torch.Tensor, at: Position, std: float) -> torch.Tensor:
    """Signal and noise of the next level; ``std`` of its noise is drawn again."""
    return at.signal_next * clean + math.sqrt(max(at.noise_next**2 - std**2, 0.0)) * noise


_STD: Mapping[str, Callable[[Position, float], float]] = {
    FLOW_SDE: _flow_sde_std,
    DANCE_SDE: _dance_std,
    CPS: _cps_std,
    DDIM: _ddim_std,
    ODE: _ode_std,
}
_DISCRETE_MEAN: Mapping[str, Callable[[torch.Tensor, torch.Tensor, Position, float], torch.Tensor]] = {
    "epsilon": _epsilon_mean,
    "v_prediction": _velocity_mean,
}
_FLOW_MEAN: Mapping[str, Callable[[torch.Tensor, torch.Tensor, Position, float], torch.Tensor]] = {
    FLOW_SDE: _flow_sde_mean,
    DANCE_SDE: _dance_mean,
    CPS: _cps_mean,
    ODE: _ode_mean,
}


def sample(transition: Transition, normal: torch.Tensor, storage: torch.dtype) -> torch.Tensor:
    """Draw from a transition, rounded to the type it will be stored in.

    Args:
        normal: standard normal numbers, (B, C, h, w).
        storage: storage type; log-probabilities are of the rounded values, so that training computes the
            same.
    """
    drawn = (
        transition.mean + transition.std * normal.to(transition.mean) if transition.std else transition.mean
    )
    return drawn.to(storage)


def log_prob(
    x_next: torch.Tensor, transition: Transition, reduction: str = MEAN, form: str = GAUSSIAN
) -> torch.Tensor:
    """Log-density of the next latents, (B,) float32 at least.

    Args:
        x_next: (B, C, h, w), as stored.
        reduction: ``MEAN`` or ``SUM`` over the C*h*w numbers; ratios of the sum are the mean's to the power
            of C*h*w, so clip ranges differ by about that factor.
        form: ``GAUSSIAN``, or ``SQUARED_ERROR``: -(x' - mean)^2 without standard deviation and constant,
            which some programs use for CPS. It is not a log-density: ratios are on another scale.

    Raises:
        ConfigError: the reduction or form is unknown.
        ValueError: the step adds no noise.
    """
    known_name("reduction", reduction, REDUCTIONS, "rlhf_logprob_reduction")
    known_name("form", form, FORMS, "rlhf_logprob_form")
    if not transition.std > 0.0:
        raise ValueError("a step without noise has no log-probability")
    value = -(to_float32(x_next) - transition.mean).square()
    if form == GAUSSIAN:
        std = transition.std
        value = value / (2.0 * std**2) - (math.log(std) + 0.5 * math.log(2.0 * math.pi))
    return _reduced(value, reduction)


def mean_gap(mean_BChw: torch.Tensor, other_BChw: torch.Tensor, reduction: str = MEAN) -> torch.Tensor:
    """Squared distance of the means of two transitions, (B,), reduced as their log-probabilities are."""
    return _reduced((mean_BChw - other_BChw).square(), reduction)


def _reduced(value: torch.Tensor, reduction: str) -> torch.Tensor:
    flat_BD = value.flatten(1)
    return flat_BD.mean(dim=1) if reduction == MEAN else flat_BD.sum(dim=1)
