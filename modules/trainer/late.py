"""Numbers of an optimizer step that are read from its device during the next one, so that the CPU never waits.

A device works through what the CPU has queued. If the CPU reads a number of the current step, it waits until the queue
is empty, and the device is idle until the next step is queued. So the update is skipped on the device if a number is
not finite, and the numbers are read once the passes of the next step are queued.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch

from modules.trainer.assembly import Run
from modules.trainer.distributed import Processes
from modules.trainer.steps import Numbers
from modules.util.TrainProgress import TrainProgress

LATE = (torch.optim.Adam, torch.optim.AdamW)
"""Optimizers whose fused kernel changes nothing if ``found_inf`` is 1: no weight, no state, no count of steps."""


class Copies:
    """Copies of tensors on the CPU. Making them does not wait for the device; reading them waits for nothing that was
    queued later.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors, self._made = list(tensors), None
        if any(tensor.is_cuda for tensor in tensors):
            self._tensors = [_pinned_copy(tensor) for tensor in tensors]
            self._made = torch.cuda.Event()
            self._made.record()

    def read(self) -> list[torch.Tensor]:
        if self._made is not None:
            self._made.synchronize()
        return [tensor.cpu() for tensor in self._tensors]


def _pinned_copy(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cuda:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


class UnreadStep:
    """A step that was taken and whose numbers were not read yet.

    Args:
        progress: the position before the step.
        norm: norm of the gradient, ().
        more: further values to log.
    """

    def __init__(
        self, progress: TrainProgress, numbers: Numbers, norm: torch.Tensor, more: Mapping[str, float]
    ) -> None:
        self.before, self.after = copy.copy(progress), copy.copy(progress)
        self.more = dict(more)
        self.left: float | None = None
        self._averages = numbers.averages
        self._copies = Copies((norm, *numbers.tensors))

    def read(self) -> tuple[dict[str, float], float]:
        """The averages of the step and the norm of its gradient."""
        norm, *tensors = self._copies.read()
        return self._averages(tensors), float(norm)


def can_wait(parts: Run, processes: Processes) -> bool:
    """Return whether reading the numbers of this run's steps late leaves its weights unchanged."""
    optimizer = parts.optimizer
    fused = type(optimizer) in LATE and all(group["fused"] for group in optimizer.param_groups)
    places = {parameter.device for group in optimizer.param_groups for parameter in group["params"]}
    alone = processes.world_size == 1 and places == {processes.device}
    special = (parts.fused, parts.rounding, parts.old_policy, parts.model.words)
    plain = not parts.scaler.enabled and all(one is None for one in special)
    # a CPU computes what it is told at once
    return processes.device.type != "cpu" and alone and fused and plain


def update_if_finite(
    optimizer: torch.optim.Optimizer, norm: torch.Tensor, sound: torch.Tensor, update: Callable[[], None]
) -> None:
    """Take the step of a fused optimizer if the norm is finite and all losses are, without reading either."""
    optimizer.found_inf = (~(norm.isfinite() & sound)).to(torch.float32)  # type: ignore[attr-defined]
    try:
        update()
    finally:
        del optimizer.found_inf  # type: ignore[attr-defined]
