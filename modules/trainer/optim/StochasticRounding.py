"""Optimizer steps of 16-bit weights without loss: computed in 32 bits, then rounded up or down at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from modules.trainer.optim.ema import Named
from modules.util.rng import digest64, hashed_bits

CHUNK = 1 << 22
"""Number of values rounded at a time, which bounds the memory of their random bits."""


class StochasticRounding:
    """Takes the steps of an optimizer one parameter after the other.

    For its step, a bfloat16 parameter and its optimizer state are converted to float32. The result is rounded
    to one of its two neighbours, to the nearer one with higher probability, so that its mean over many steps
    is exact. The random bits are derived from the seed, the step and the parameter's name.

    Args:
        optimizer: an optimizer whose parameters do not influence each other.
        named: names and parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, named: Named, seed: int) -> None:
        self._optimizer, self._seed = optimizer, seed
        self._names = {parameter: name for name, parameter in named}
        self._step = 0

    def begin(self, step: int) -> None:
        """Set the optimizer step of the run to which the following steps belong."""
        self._step = step

    def step(self) -> None:
        """Take one step with the current gradients."""
        optimizer, groups = self._optimizer, self._optimizer.param_groups
        try:
            for group in groups:
                # each parameter must find the counters of its group as they were before the step
                before = {name: value for name, value in group.items() if name != "params"}
                for parameter in group["params"]:
                    if parameter.grad is None:
                        continue
                    alone = {**before, "params": [parameter]}
                    optimizer.param_groups = [alone]
                    self.step_of(parameter, optimizer.step)
                    group.update({name: value for name, value in alone.items() if name != "params"})
        finally:
            optimizer.param_groups = groups

    @torch.no_grad()
    def step_of(
        self, parameter: torch.Tensor, step: Callable[[], object], known_as: torch.Tensor | None = None
    ) -> None:
        """Take a step of one parameter by calling ``step``. The parameter may be a stand-in for the one it is
        ``known_as``.
        """
        if parameter.dtype is not torch.bfloat16:
            step()
            return
        kept, gradient = parameter.data, parameter.grad
        assert gradient is not None
        parameter.grad = None
        parameter.data = kept.float()
        parameter.grad = gradient.float()
        try:
            step()
            wanted = parameter.data
        finally:
            parameter.grad = None
            parameter.data = kept
            parameter.grad = gradient
        own = parameter if known_as is None else known_as
        key = digest64("rounding", self._seed, self._step, self._names[own])  # type: ignore[index]
        parameter.copy_(round_by_chance(wanted, key))


def round_by_chance(values: torch.Tensor, key: int) -> torch.Tensor:
    """Round to bfloat16 numbers whose mean over many keys is ``values``: 16 random bits are added below the
    last kept bit, then the lower bits are dropped. NaN and infinity are unchanged.

    Args:
        values: float32.
        key: unsigned, of 64 bits.
    """
    flat = values.contiguous().view(-1)
    made = torch.empty_like(flat, dtype=torch.bfloat16)
    for start in range(0, len(flat), CHUNK):
        exact = flat[start : start + CHUNK]
        noise = hashed_bits(key, start, len(exact), 16, exact.device).to(torch.int32)
        bits = (exact.view(torch.int32) + noise) & -0x10000
        made[start : start + CHUNK] = torch.where(exact.isfinite(), bits.view(torch.float32), exact)
    return made.view(values.shape)


def rounding_bytes(sizes: Sequence[int]) -> int:
    """Memory of the largest step: a weight and its gradient in 32 bits, and the random bits.

    Args:
        sizes: number of values of each parameter.
    """
    largest = max(sizes, default=0)
    return 8 * largest + 24 * min(largest, CHUNK)
