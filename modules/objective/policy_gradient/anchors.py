"""Terms that hold per-image losses to the reference: a KL, and the norm guard."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from modules.objective.norm_guard import excess_of_norm
from modules.objective.policy_gradient.base import ImageOptions, transition_kl


@dataclass(frozen=True)
class GuardedOptions(ImageOptions):
    """Options of a loss with the norm guard.

    Args:
        norm_guard: weight of the mean of ``norm_guard.excess_of_norm`` over the images.
    """

    norm_guard: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.norm_guard) or self.norm_guard < 0:
            raise ValueError(f"norm_guard is {self.norm_guard!r}; it must be finite and >= 0")

    @property
    def compares(self) -> bool:
        return super().compares or self.norm_guard > 0


def held(
    loss: torch.Tensor,
    new_BChw: torch.Tensor,
    reference_BChw: torch.Tensor | None,
    options: GuardedOptions,
    images: int,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """``loss + kl_beta mean_i |v - v_ref|^2 + norm_guard mean_i max(0, |v| / |v_ref| - 1)^2``, and what was
    added.

    Args:
        loss: the share of this micro-batch.
        new_BChw: prediction of the policy, with gradient, in fp32 or fp64.
        reference_BChw: prediction of the reference, if the options ``compares``.
        images: number of images of the optimizer step, times the timesteps.

    Returns:
        The loss, and its detached parts ``kl`` (without its strength) and ``norm_guard`` if they are on.

    Raises:
        ValueError: the options compare, but there is no prediction of the reference.
    """
    parts: dict[str, torch.Tensor] = {}
    if options.compares and reference_BChw is None:
        raise ValueError("kl_beta or norm_guard is above 0, and no prediction of the reference was given")
    if options.kl_beta and reference_BChw is not None:
        kl = transition_kl("v", new_BChw, reference_BChw.to(new_BChw.dtype)).sum() / images
        loss = loss + options.kl_beta * kl
        parts["kl"] = kl.detach()
    if options.norm_guard and reference_BChw is not None:
        pair = (new_BChw, reference_BChw.detach().to(new_BChw.dtype))
        excess = excess_of_norm(*(one.flatten(1).norm(dim=1) for one in pair)).sum() / images
        loss = loss + options.norm_guard * excess
        parts["norm_guard"] = options.norm_guard * excess.detach()
    return loss, parts
