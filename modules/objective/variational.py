"""The variational bound of diffusion models that predict their own variance, which trains the variance alone."""

from __future__ import annotations

import math

import torch

_BIN = 1.0 / 255.0
_LEAST = 1e-12
_EDGE = 0.999


def variational_bits(
    clean_BChw: torch.Tensor,
    noisy_BChw: torch.Tensor,
    noise_BChw: torch.Tensor,
    variance_BChw: torch.Tensor,
    alphas_cumprod_T: torch.Tensor,
    timestep_B: torch.Tensor,
) -> torch.Tensor:
    """The terms of the variational bound in bits, (B, C, h, w) float32: the divergence of the true step from the
    predicted one, and for the last step the likelihood of what comes out (Nichol & Dhariwal 2021, arXiv 2102.09672,
    section 3.1, without the factor T).

    Args:
        noise_BChw: predicted noise. It gets no gradient, as in the paper's hybrid loss.
        variance_BChw: what the model says about the variance: -1 for the smallest, 1 for the largest that is possible.
        alphas_cumprod_T: (T,) in (0, 1), falling.
        timestep_B: int64 in [0, T).
    """
    alpha_T = alphas_cumprod_T.double()
    before_T = torch.cat([alpha_T.new_ones(1), alpha_T[:-1]])
    beta_T = 1.0 - alpha_T / before_T
    least_T = beta_T * (1.0 - before_T) / (1.0 - alpha_T)
    # the last step has no variance at all, whose logarithm would be infinite
    least_T = torch.cat([least_T[1:2], least_T[1:]])

    def at(values_T: torch.Tensor) -> torch.Tensor:
        return (
            values_T.to(timestep_B.device)[timestep_B.long()].float().to(clean_BChw.device).view(-1, 1, 1, 1)
        )

    clean_BChw, noisy_BChw, noise_BChw = clean_BChw.float(), noisy_BChw.float(), noise_BChw.detach().float()
    guess_BChw = (noisy_BChw - at((1.0 - alpha_T).sqrt()) * noise_BChw) / at(alpha_T.sqrt())
    of_clean, of_noisy = (
        at(before_T.sqrt() * beta_T / (1.0 - alpha_T)),
        at((alpha_T / before_T).sqrt() * (1.0 - before_T) / (1.0 - alpha_T)),
    )
    true_BChw, mean_BChw = (of_clean * one + of_noisy * noisy_BChw for one in (clean_BChw, guess_BChw))
    share_BChw = (variance_BChw.float() + 1.0) / 2.0
    least_B111 = at(least_T.log())
    log_BChw = share_BChw * at(beta_T.log()) + (1.0 - share_BChw) * least_B111
    gap_BChw = (true_BChw - mean_BChw).square()
    divergence = 0.5 * (
        log_BChw - least_B111 - 1.0 + (least_B111 - log_BChw).exp() + gap_BChw * (-log_BChw).exp()
    )
    unlikely = -_log_likelihood(clean_BChw, mean_BChw, 0.5 * log_BChw)
    last_B111 = timestep_B.to(clean_BChw.device).view(-1, 1, 1, 1) == 0
    return torch.where(last_B111, unlikely, divergence) / math.log(2.0)


def _log_likelihood(values: torch.Tensor, mean: torch.Tensor, log_deviation: torch.Tensor) -> torch.Tensor:
    """Of values in bins of 2 / 255, under a normal distribution; the outermost bins reach to infinity."""
    inverse, centred = (-log_deviation).exp(), values - mean
    upper = torch.special.ndtr(inverse * (centred + _BIN))
    lower = torch.special.ndtr(inverse * (centred - _BIN))
    inside = torch.where(values < -_EDGE, upper, torch.where(values > _EDGE, 1.0 - lower, upper - lower))
    return inside.clamp(min=_LEAST).log()
