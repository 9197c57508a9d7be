"""Optimizer steps taken inside the backward pass, parameter by parameter, so that gradients need not be kept."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from modules.trainer.optim.DeviceVisits import DeviceVisits
from modules.trainer.optim.StochasticRounding import StochasticRounding


class FusedSteps:
    """Hooks that update every parameter and free its gradient as soon as the gradient is complete.

    A gradient that is not finite is dropped without a step and shows in ``norm``. This is guaranteed for any
    optimizer, so every parameter's gradient is checked before its step, for which the CPU waits for the
    device.

    Args:
        optimizer: an optimizer that treats every parameter separately; its state is unaffected.
        limit: maximum norm of the gradient of one parameter; larger gradients are scaled down to it. 0: no
            limit.
        rounding: stochastic rounding of the results, if used.
        visits: moves parameters in main memory to the device for their step, if any.

    Attributes:
        dropped: parameters whose gradients were dropped before the last call of ``norm``.
        taken: number of those that took their step.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        limit: float = 0.0,
        rounding: StochasticRounding | None = None,
        visits: DeviceVisits | None = None,
    ) -> None:
        self._optimizer, self._rounding = optimizer, rounding
        self._limit, self._visits = limit, visits
        self._squares: dict[tuple[int, int], torch.Tensor] = {}
        self._dropped: list[torch.Tensor] = []
        self.dropped: list[torch.Tensor] = []
        self.taken = 0
        # gradients on the device and in main memory arrive in different threads
        self._one_at_a_time = threading.Lock()
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._hook((index, place)))
            for index, group in enumerate(optimizer.param_groups)
            for place, parameter in enumerate(group["params"])
        ]

    def _hook(self, place: tuple[int, int]) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            with self._one_at_a_time:
                if self._visits is None:
                    self._use(place, parameter, parameter)
                else:
                    with self._visits.visit(place[0], parameter) as there:
                        self._use(place, there, parameter)
                parameter.grad = None

        return hook

    def _use(self, place: tuple[int, int], parameter: torch.Tensor, known_as: torch.Tensor) -> None:
        """Take the step of a parameter, which may be a stand-in for the one it is ``known_as``."""
        assert parameter.grad is not None
        square = torch.linalg.vector_norm(parameter.grad, dtype=torch.float32).square()
        self._squares[place] = square
        if bool(square.isfinite()):
            if self._limit:
                torch.nn.utils.clip_grads_with_norm_(parameter, self._limit, square.sqrt())
            self._step(place[0], parameter, known_as)
        else:
            self._dropped.append(known_as)

    def _step(self, index: int, parameter: torch.Tensor, known_as: torch.Tensor) -> None:
        optimizer, groups = self._optimizer, self._optimizer.param_groups
        optimizer.param_groups = [{**groups[index], "params": [parameter]}]
        try:
            if self._rounding is None:
                optimizer.step()
            else:
                self._rounding.step_of(parameter, optimizer.step, known_as)
        finally:
            optimizer.param_groups = groups

    def norm(self) -> torch.Tensor:
        """The norm of all gradients since the last call."""
        squares, self._squares = self._squares, {}
        self.dropped, self._dropped = self._dropped, []
        self.taken = len(squares) - len(self.dropped)
        if not squares:
            return torch.zeros(())
        return torch.stack([squares[place] for place in sorted(squares)]).sum().sqrt()

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
