"""The ordinary denoising loss: per-sample distances and their weights over the noise level."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch.nn.functional import huber_loss, softplus

PredictionKind = Literal["epsilon", "v_prediction", "flow"]

# Weights of nearly clean samples grow without bound in 1/SNR terms; beyond this they only add noise.
MAX_DEBIASED_SNR = 1.0e3
MIN_SNR = 1.0e-8


@dataclass(frozen=True)
class SupervisedOptions:
    """The weight of each distance in the loss; all finite and >= 0, ``huber_delta`` > 0."""

    mse_strength: float = 1.0
    mae_strength: float = 0.0
    log_cosh_strength: float = 0.0
    huber_strength: float = 0.0
    huber_delta: float = 1.0


@dataclass(frozen=True)
class MaskOptions:
    """Options of masked losses.

    Args:
        least: the weight of black areas of a mask, from 0 to 1.
        normalize: divide the loss of a sample by the mean of its weights.
    """

    least: float = 0.0
    normalize: bool = False


@dataclass(frozen=True)
class LossOptions:
    """The supervised loss: distances, the weight of each noise level (see ``noise_level_weight``) and of masks."""

    distances: SupervisedOptions = field(default_factory=SupervisedOptions)
    weight_function: str = "CONSTANT"
    weight_strength: float = 5.0
    masks: MaskOptions = field(default_factory=MaskOptions)
    variational_strength: float = 0.0


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Convert to at least float32; float64 stays."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def mean_per_sample(
    values: torch.Tensor, weight_B1hw: torch.Tensor | None = None, normalize: bool = False
) -> torch.Tensor:
    """(B,) means over all but the batch dimension, of ``values * weight``; normalised, over the mean weight."""
    if weight_B1hw is None:
        return values.flatten(1).mean(1)
    mean_B = (values * weight_B1hw).flatten(1).mean(1)
    if not normalize:
        return mean_B
    area_B = weight_B1hw.flatten(1).mean(1)
    # a sample whose weights are all 0 has a mean of 0 already
    return mean_B / torch.where(area_B > 0, area_B, 1.0)


def mask_weight(mask_B1hw: torch.Tensor, options: MaskOptions, outside: bool = False) -> torch.Tensor:
    """The weight of each cell, clamp(mask, least, 1); with ``outside``, 1 minus that."""
    weight_B1hw = _wide(mask_B1hw).clamp(options.least, 1.0)
    return 1.0 - weight_B1hw if outside else weight_B1hw


def mse_per_sample(
    predicted: torch.Tensor,
    target: torch.Tensor,
    weight_B1hw: torch.Tensor | None = None,
    normalize: bool = False,
) -> torch.Tensor:
    """Mean squared error over all but the batch dimension: (B, ...) -> (B,), float32 (float64 kept).

    Args:
        weight_B1hw: weight of each cell, by which the errors are multiplied.
        normalize: average over the weights instead of all cells.
    """
    return mean_per_sample((_wide(predicted) - _wide(target)).square(), weight_B1hw, normalize)


def combined_loss(
    predicted: torch.Tensor,
    target: torch.Tensor,
    options: SupervisedOptions,
    weight_B1hw: torch.Tensor | None = None,
    normalize: bool = False,
) -> torch.Tensor:
    """Weighted sum of MSE, MAE, log-cosh and Huber distances per sample.

    Args:
        predicted, target: (B, ...) in the model's own parameterisation; reduced in float32 (float64 is kept).
        options: the strengths; a distance of strength 0 is not computed.
        weight_B1hw: weight of each cell, by which every distance is multiplied before averaging.
        normalize: divide by the mean weight of the sample.

    Returns:
        (B,) losses. Only zero strengths give zeros that still carry a gradient (of zero).
    """
    predicted, target = _wide(predicted), _wide(target)
    difference = predicted - target
    terms: list[torch.Tensor] = []

    def mean(values: torch.Tensor) -> torch.Tensor:
        return mean_per_sample(values, weight_B1hw, normalize)

    if options.mse_strength:
        terms.append(options.mse_strength * mean(difference.square()))
    if options.mae_strength:
        terms.append(options.mae_strength * mean(difference.abs()))
    if options.log_cosh_strength:
        size = difference.abs()
        # log cosh(x) = |x| + log(1 + exp(-2|x|)) - log 2 cannot overflow
        terms.append(options.log_cosh_strength * mean(size + softplus(-2.0 * size) - math.log(2.0)))
    if options.huber_strength:
        distance = huber_loss(predicted, target, reduction="none", delta=options.huber_delta)
        terms.append(options.huber_strength * mean(distance))
    if not terms:
        return mean(difference * 0.0)
    return torch.stack(terms).sum(0)


def noise_level_weight(
    function: str,
    snr_B: torch.Tensor | None,
    prediction: PredictionKind,
    strength: float,
    sigma_B: torch.Tensor | None = None,
) -> torch.Tensor | float:
    """Weight of each sample's loss by its signal-to-noise ratio.

    Args:
        function: CONSTANT, MIN_SNR_GAMMA (Hang et al. 2023, arXiv 2303.09556), DEBIASED_ESTIMATION (Yu et al.
            2023, arXiv 2310.08442), P2 (Choi et al. 2022, arXiv 2204.00227, with k = 1), SNR (the ratio
            itself, for v-prediction snr / (snr + 1)) or SIGMA (the noise level of a flow).
        snr_B: alpha^2 / sigma^2 of each sample's timestep, (B,), not needed for CONSTANT.
        prediction: what the model predicts; the SNR weights are defined for epsilon and v.
        strength: gamma of MIN_SNR_GAMMA and P2; the highest weight of SNR.
        sigma_B: share of noise of each sample, (B,), needed for SIGMA.

    Returns:
        (B,) weights, or 1.0 for CONSTANT.

    Raises:
        ValueError: the function is unknown, an SNR weight is requested for a flow-matching model, or SIGMA
            for another one.
    """
    name = str(getattr(function, "value", function))
    if name == "CONSTANT":
        return 1.0
    if name == "SIGMA":
        if prediction != "flow" or sigma_B is None:
            raise ValueError("the loss weight SIGMA is defined for flow-matching models alone")
        return _wide(sigma_B)
    if prediction == "flow":
        raise ValueError(f"the loss weight {name} is not defined for flow-matching models")
    if snr_B is None:
        raise ValueError(f"{name} needs the signal-to-noise ratio")
    snr_B = _wide(snr_B).clamp_min(MIN_SNR)
    shift = 1.0 if prediction == "v_prediction" else 0.0
    if name == "MIN_SNR_GAMMA":
        return snr_B.clamp_max(strength) / (snr_B + shift)
    if name == "DEBIASED_ESTIMATION":
        return (snr_B.clamp_max(MAX_DEBIASED_SNR) + shift).rsqrt()
    if name == "SNR":
        return (snr_B / (snr_B + 1.0) if shift else snr_B).clamp_max(strength)
    if name == "P2":
        return (1.0 + snr_B + shift) ** -strength
    raise ValueError(f"unknown loss weight {name!r}")
