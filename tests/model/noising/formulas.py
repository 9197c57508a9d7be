"""What tests compare noise schedules with, written down plainly."""

from __future__ import annotations

import torch

from modules.model.noising.schedule import Schedule


def clean_from(
    schedule: Schedule, noisy: torch.Tensor, predicted: torch.Tensor, timestep_B: torch.Tensor
) -> torch.Tensor:
    """The x_0 that a prediction implies, (B, C, h, w), by the definition of what the model predicts."""
    signal, sigma = (one.to(noisy.dtype).view(-1, 1, 1, 1) for one in schedule.coefficients(timestep_B))
    if schedule.prediction == "epsilon":
        return (noisy - sigma * predicted) / signal
    return noisy - sigma * predicted if schedule.prediction == "flow" else signal * noisy - sigma * predicted
