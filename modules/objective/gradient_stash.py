"""Keeps the gradients of one backward pass apart from those accumulated earlier, to scale them separately."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


class GradientStash:
    """Holds the parameters' earlier gradients; see ``stash_gradients``."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._earlier = [parameter.grad for parameter in parameters]

    def clear(self) -> None:
        """Drop the current gradients of the parameters."""
        for parameter in self._parameters:
            parameter.grad = None

    def put_back(self) -> None:
        """Restore the parameters' earlier gradients and drop the new ones."""
        for parameter, earlier in zip(self._parameters, self._earlier, strict=True):
            parameter.grad = earlier

    @torch.no_grad()
    def merge(self, factor: torch.Tensor) -> None:
        """Set the gradients to the earlier ones plus ``factor`` times the new ones.

        Args:
            factor: one number; it stays on its device, so that nothing waits for it.
        """
        fresh = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        _scale(fresh, factor.reshape(()))
        held: list[torch.Tensor] = []
        added: list[torch.Tensor] = []
        for parameter, earlier in zip(self._parameters, self._earlier, strict=True):
            if earlier is None:
                continue
            if parameter.grad is not None:
                held.append(earlier)
                added.append(parameter.grad)
            parameter.grad = earlier
        if held:
            torch._foreach_add_(held, added)


def _scale(gradients: list[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiply in place by one number, grouped by device as required by the fused kernels."""
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for gradient in gradients:
        groups.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for (device, _), group in groups.items():
        torch._foreach_mul_(group, factor.to(device))


@contextmanager
def stash_gradients(parameters: Sequence[torch.nn.Parameter]) -> Iterator[GradientStash]:
    """Hide the accumulated gradients, so that a backward pass in the block writes new ones.

    The block calls ``merge`` once the factor of the new ones is known. If it raises, the earlier gradients
    are restored.
    """
    stash = GradientStash(parameters)
    stash.clear()
    try:
        yield stash
    except BaseException:
        stash.put_back()
        raise


def has_backward_hooks(parameters: Sequence[torch.nn.Parameter]) -> bool:
    """Return whether something consumes a gradient as soon as it is accumulated (a fused optimizer, a reducer).
    """
    return any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in parameters)


def has_sharded(parameters: Sequence[torch.nn.Parameter]) -> bool:
    """Return whether any parameter is distributed over processes, so that its gradient mixes several of them.
    """
    return any(hasattr(parameter, "placements") for parameter in parameters)
