"""Optimizer steps on the device for weights that are kept in main memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch


class DeviceVisits:
    """Moves a parameter, its gradient and its optimizer state to the device for the duration of a block, and
    the results back.

    Args:
        optimizer: the optimizer whose steps are taken there.
        parameters: the parameters in main memory.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Collection[torch.nn.Parameter],
        device: torch.device,
    ) -> None:
        self._optimizer, self._device = optimizer, device
        self._staying = {id(parameter) for parameter in parameters}

    @contextmanager
    def visit(self, index: int, parameter: torch.Tensor) -> Iterator[torch.Tensor]:
        """Inside the block, a copy on the device replaces a parameter in main memory, with its gradient and
        state. Other parameters are yielded unchanged.

        Args:
            index: index of its group.
        """
        if id(parameter) not in self._staying:
            yield parameter
            return
        assert parameter.grad is not None
        states = self._optimizer.state
        home = states.pop(parameter, {})
        # counters stay on the CPU, unless one kernel does everything
        fused = bool(self._optimizer.param_groups[index].get("fused"))
        there = torch.nn.Parameter(parameter.detach().to(self._device))
        there.grad = parameter.grad.to(self._device)
        states[there] = {n: v.to(self._device) if _travels(v, fused) else v for n, v in home.items()}
        try:
            yield there
        finally:
            made = states.pop(there)
            parameter.data.copy_(there.data)
            states[parameter] = {
                n: _brought_home(v, home.get(n)) if _travels(v, fused) else v for n, v in made.items()
            }


def _travels(value: object, fused: bool) -> bool:
    return isinstance(value, torch.Tensor) and (fused or value.dim() > 0)


def _brought_home(value: torch.Tensor, home: torch.Tensor | None) -> torch.Tensor:
    """Move a tensor of the optimizer's state to main memory, into its old storage if it had one."""
    if home is None or home.shape != value.shape or home.dtype != value.dtype:
        home = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.device.type == "cuda")
    return home.copy_(value)
