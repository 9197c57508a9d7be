"""Mixing of noise, and the target of the model. All arithmetic is float32 or wider."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from modules.model.dtypes import wide_dtype
from modules.spec.FamilySpec import Prediction as PredictionKind
from modules.util.errors import ConfigError, DataError

FLOW_STEPS = 1000
LEAST_ALPHA = 1e-6
"""A schedule whose last cumulative alpha is below this ends in practically pure noise."""


@dataclass(frozen=True)
class Prediction:
    """Model output and its target, (B, C, h, w), in the model's own parameterisation."""

    predicted: torch.Tensor
    target: torch.Tensor
    variance: torch.Tensor | None = None


def _where_float64_is(timestep_B: torch.Tensor) -> torch.Tensor:
    """Timesteps on their device, or on the CPU for Apple's GPUs, which have no float64."""
    return timestep_B.cpu() if timestep_B.device.type == "mps" else timestep_B


def _per_sample(values_B: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Reshape (B,) to multiply a (B, ...) tensor. The product has at least float32."""
    return values_B.to(device=like.device, dtype=wide_dtype(like.dtype)).view(-1, *[1] * (like.dim() - 1))


class Schedule(ABC):
    """A noise schedule: x_t from x_0 and noise, and the target.

    Timesteps are (B,): int64 in [0, ``steps``) for discrete schedules, float32 in [0, ``steps``) for flow.
    """

    prediction: PredictionKind
    steps: int

    @abstractmethod
    def timestep(self, fraction_B: torch.Tensor) -> torch.Tensor:
        """Noise levels in [0, 1) to timesteps (B,)."""

    @abstractmethod
    def coefficients(self, timestep_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(signal, noise) factors of x_t, each (B,) float64."""

    @abstractmethod
    def target(self, clean: torch.Tensor, noise: torch.Tensor, timestep_B: torch.Tensor) -> torch.Tensor:
        """The target of the model, (B, C, h, w)."""

    @abstractmethod
    def offset_share(self, timestep_B: torch.Tensor) -> torch.Tensor:
        """Return the share of an offset that belongs to the noise of each timestep, (B,) float64, 1 for the
        last.

        Raises:
            ConfigError: this schedule has no such shares.
        """

    def add_noise(self, clean: torch.Tensor, noise: torch.Tensor, timestep_B: torch.Tensor) -> torch.Tensor:
        """x_t = signal * x_0 + sigma * noise, (B, C, h, w)."""
        signal_B, sigma_B = self.coefficients(timestep_B)
        return _per_sample(signal_B, clean) * clean + _per_sample(sigma_B, clean) * noise

    def snr(self, timestep_B: torch.Tensor) -> torch.Tensor:
        """Signal-to-noise ratio (signal / sigma)^2, (B,) float32."""
        signal_B, sigma_B = self.coefficients(timestep_B)
        return (signal_B / sigma_B).square().float()


class DiscreteSchedule(Schedule):
    """DDPM with T steps and a table of cumulative alphas (Ho et al. 2020, arXiv 2006.11239).

    Args:
        alphas_cumprod_T: (T,) in [0, 1), descending.
        prediction: ``epsilon`` or ``v_prediction`` (Salimans & Ho 2022, arXiv 2202.00512).
    """

    def __init__(self, alphas_cumprod_T: torch.Tensor, prediction: PredictionKind) -> None:
        if prediction not in ("epsilon", "v_prediction"):
            raise DataError(
                f"a discrete schedule cannot be trained with prediction type {prediction!r}",
                hint="use a model that predicts epsilon or v_prediction",
            )
        if prediction == "epsilon" and float(alphas_cumprod_T[-1]) == 0.0:
            raise ConfigError(
                "a schedule that ends in pure noise cannot be trained with epsilon prediction",
                field="rescale_noise_scheduler_to_zero_terminal_snr",
                hint="use a v-prediction model or force_v_prediction",
            )
        self.prediction = prediction
        self.alphas_cumprod_T = alphas_cumprod_T.double()
        self.steps = alphas_cumprod_T.shape[0]
        self._tables: dict[torch.device, torch.Tensor] = {}

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        prediction: PredictionKind | None = None,
        zero_terminal_snr: bool = False,
    ) -> DiscreteSchedule:
        """From the config of a diffusers scheduler.

        Args:
            config: ``scheduler_config.json``.
            prediction: overrides the config's ``prediction_type``.
            zero_terminal_snr: rescale so that the last step is pure noise, unless the config already does.
        """
        alphas_T = torch.cumprod(1.0 - _betas(config), dim=0)
        if zero_terminal_snr or config.get("rescale_betas_zero_snr", False):
            alphas_T = rescale_to_zero_terminal_snr(alphas_T)
        return cls(alphas_T, prediction or config.get("prediction_type", "epsilon"))

    def timestep(self, fraction_B: torch.Tensor) -> torch.Tensor:
        return (fraction_B.double() * self.steps).floor().long().clamp(0, self.steps - 1)

    def coefficients(self, timestep_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        timestep_B = _where_float64_is(timestep_B)
        alpha_B = self._table(timestep_B.device)[timestep_B.long()]
        return alpha_B.sqrt(), (1.0 - alpha_B).sqrt()

    def offset_share(self, timestep_B: torch.Tensor) -> torch.Tensor:
        """sqrt((1 - a_t) / a_t), over that of the last step: the balanced strategy of "Generalized Diffusion
        Model with Adjusted Offset Noise" (Kutsuna 2024, arXiv 2412.03134). A diffusion with a shift in
        every step then has the same share of the shift in its noise and in its target.

        Raises:
            ConfigError: the schedule ends in pure noise.
        """
        if float(self.alphas_cumprod_T[-1]) < LEAST_ALPHA:
            raise ConfigError(
                "is not defined for this model: its noise schedule ends in pure noise",
                field="generalized_offset_noise",
                hint="switch it off for this model",
            )
        ratio_T = (1.0 / self.alphas_cumprod_T - 1.0).sqrt()
        return (ratio_T / ratio_T[-1]).to(timestep_B.device)[timestep_B.long()]

    def _table(self, device: torch.device) -> torch.Tensor:
        """The cumulative alphas on the needed device, so that the lookup does not synchronise."""
        if device not in self._tables:
            self._tables[device] = self.alphas_cumprod_T.to(device)
        return self._tables[device]

    def target(self, clean: torch.Tensor, noise: torch.Tensor, timestep_B: torch.Tensor) -> torch.Tensor:
        if self.prediction == "epsilon":
            return noise.to(wide_dtype(noise.dtype))
        signal_B, sigma_B = self.coefficients(timestep_B)
        return _per_sample(signal_B, clean) * noise - _per_sample(sigma_B, clean) * clean

    def noise_of(
        self, predicted: torch.Tensor, noisy: torch.Tensor, timestep_B: torch.Tensor
    ) -> torch.Tensor:
        """The noise that a prediction for x_t means, (B, C, h, w)."""
        if self.prediction == "epsilon":
            return predicted.to(wide_dtype(predicted.dtype))
        signal_B, sigma_B = self.coefficients(timestep_B)
        return _per_sample(signal_B, predicted) * predicted + _per_sample(sigma_B, predicted) * noisy


class FlowSchedule(Schedule):
    """Rectified flow (Liu et al. 2022, arXiv 2209.03003): x_t = (1 - s) x_0 + s noise with s = t / 1000, and
    the velocity noise - x_0 as target.
    """

    prediction: PredictionKind = "flow"
    steps = FLOW_STEPS

    def timestep(self, fraction_B: torch.Tensor) -> torch.Tensor:
        return (fraction_B.double() * self.steps).float().clamp(0.0, 999.9999)

    def coefficients(self, timestep_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sigma_B = _where_float64_is(timestep_B).double() / self.steps
        return 1.0 - sigma_B, sigma_B

    def offset_share(self, timestep_B: torch.Tensor) -> torch.Tensor:
        raise ConfigError(
            "is not defined for flow-matching models",
            field="generalized_offset_noise",
            hint="switch it off",
        )

    def target(self, clean: torch.Tensor, noise: torch.Tensor, timestep_B: torch.Tensor) -> torch.Tensor:
        return noise.to(wide_dtype(noise.dtype)) - clean


def _betas(config: Mapping[str, Any]) -> torch.Tensor:
    """The (T,) float64 betas of a diffusers scheduler config."""
    if config.get("trained_betas") is not None:
        return torch.tensor(config["trained_betas"], dtype=torch.float64)
    steps = int(config.get("num_train_timesteps", 1000))
    start, end = (
        default if config.get(name) is None else float(config[name])
        for name, default in (("beta_start", 0.0001), ("beta_end", 0.02))
    )
    kind = config.get("beta_schedule", "linear")
    if kind == "linear":
        return torch.linspace(start, end, steps, dtype=torch.float64)
    if kind == "scaled_linear":
        return torch.linspace(start**0.5, end**0.5, steps, dtype=torch.float64).square()
    if kind == "squaredcos_cap_v2":
        edges = torch.arange(steps + 1, dtype=torch.float64) / steps
        bar = torch.cos((edges + 0.008) / 1.008 * math.pi / 2).square()
        return (1.0 - bar[1:] / bar[:-1]).clamp_max(0.999)
    raise DataError(
        f"the scheduler's beta schedule {kind!r} is unknown",
        hint="linear, scaled_linear and squaredcos_cap_v2 are known",
    )


def rescale_to_zero_terminal_snr(alphas_cumprod_T: torch.Tensor) -> torch.Tensor:
    """Shift and scale the square roots so that the last step is pure noise and the first is unchanged (Lin et
    al. 2023, arXiv 2305.08891, algorithm 1). (T,) -> (T,).
    """
    root_T = alphas_cumprod_T.double().sqrt()
    first, last = root_T[0], root_T[-1]
    return ((root_T - last) * first / (first - last)).square()
