"""Optimizer steps taken inside the backward pass, parameter by parameter, so that gradients need not be kept."""

from __future__ import annotations

from collections.abc import Callable

import torch

from modules.trainer.optim.StochasticRounding import StochasticRounding


class FusedSteps:
    """Hooks that step and free every parameter as soon as its gradient is complete.

    A gradient that is not finite is dropped without a step and shows in ``norm``. That is promised of any optimizer,
    so every parameter's gradient is looked at before its step, for which the CPU waits for the device.

    Args:
        optimizer: one that treats every parameter on its own; its state is kept as ever.
        limit: the largest norm of the gradient of one parameter; a larger gradient is scaled down to it. 0: none.
        rounding: rounds what comes out by chance, if that is wanted.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, limit: float = 0.0, rounding: StochasticRounding | None = None
    ) -> None:
        self._optimizer, self._rounding = optimizer, rounding
        self._limit = limit
        self._squares: list[torch.Tensor] = []
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._hook(index))
            for index, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
        ]

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            square = torch.linalg.vector_norm(parameter.grad, dtype=torch.float32).square()
            self._squares.append(square)
            if bool(square.isfinite()):
                if self._limit:
                    torch.nn.utils.clip_grads_with_norm_(parameter, self._limit, square.sqrt())
                self._step(index, parameter)
            parameter.grad = None

        return hook

    def _step(self, index: int, parameter: torch.Tensor) -> None:
        optimizer, groups = self._optimizer, self._optimizer.param_groups
        optimizer.param_groups = [{**groups[index], "params": [parameter]}]
        try:
            if self._rounding is None:
                optimizer.step()
            else:
                self._rounding.step_of(parameter, optimizer.step)
        finally:
            optimizer.param_groups = groups

    def norm(self) -> torch.Tensor:
        """The norm of all gradients since the last call."""
        squares, self._squares = self._squares, []
        return torch.stack(squares).sum().sqrt() if squares else torch.zeros(())

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
