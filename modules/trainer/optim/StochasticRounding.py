"""Steps of weights with 16 bits that are not lost: computed in 32 bits, then rounded up or down by chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from modules.trainer.optim.ema import Named
from modules.util.rng import digest64, hashed_bits

CHUNK = 1 << 22
"""Numbers that are rounded at a time, which bounds the memory of their random bits."""


class StochasticRounding:
    """Takes the steps of an optimizer one parameter after the other.

    A bfloat16 parameter is a float32 one for the length of its step, and so is its state in the optimizer. What comes
    out is rounded to one of its two neighbours, to the nearer one with the greater chance, so that its mean over many
    steps is exact. The random bits follow from the seed, the step and the parameter's name.

    Args:
        optimizer: one whose parameters do not influence each other.
        named: names and parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, named: Named, seed: int) -> None:
        self._optimizer, self._seed = optimizer, seed
        self._names = {parameter: name for name, parameter in named}
        self._step = 0

    def begin(self, step: int) -> None:
        """The steps that follow belong to optimizer step ``step`` of the run."""
        self._step = step

    def step(self) -> None:
        """One step with the gradients that are there."""
        optimizer, groups = self._optimizer, self._optimizer.param_groups
        try:
            for group in groups:
                # each parameter finds the counters of its group as they were before the step
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
        """A step of one parameter, which ``step`` takes; it may stand for another one, by whose name it goes."""
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
    """bfloat16 numbers whose mean over many keys is ``values``: 16 random bits are added behind the last bit that is
    kept, then what is behind it is dropped. NaN and infinity stay.

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
    """Memory of the largest step: a weight and its gradient in 32 bits, and random bits.

    Args:
        sizes: numbers of each parameter.
    """
    largest = max(sizes, default=0)
    return 8 * largest + 24 * min(largest, CHUNK)
