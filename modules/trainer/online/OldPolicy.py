from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from modules.trainer.optim.ema import Named
from modules.util.errors import DataError


def decay_at(step: int, highest: float, rise: float) -> float:
    """Share of the old policy kept at optimizer step ``step`` (from 0): 0 at first, so that it becomes the
    trained weights, then rising to ``highest``.
    """
    return min(highest, rise * step)


class OldPolicy:
    """The old policy of some decoupled modes: a copy of the trained weights that follows them ever more
    slowly.

    It is independent of the moving average that samples are made with.

    Args:
        parameters: names and parameters; the copy starts at their values.
        highest, rise: see ``decay_at``.
        device: device of the copy.
    """

    def __init__(self, parameters: Named, highest: float, rise: float, device: torch.device | str) -> None:
        self.parameters = list(parameters)
        self.highest, self.rise = highest, rise
        self._inside = False
        self._copy = {name: p.detach().to(device, copy=True) for name, p in self.parameters}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update after optimizer step ``step`` (from 0), once per step."""
        decay = decay_at(step, self.highest, self.rise)
        for name, parameter in self.parameters:
            copy = self._copy[name]
            copy.lerp_(parameter.detach().to(copy.device, copy.dtype), 1.0 - decay)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Use the old policy's weights inside the block, and always the trained ones again afterwards.

        Only pointers are swapped; nothing is copied. The block must end before a backward pass.

        Raises:
            RuntimeError: it is already active.
        """
        if self._inside:
            raise RuntimeError("the old policy was entered inside itself")
        self._inside = True
        live = [parameter.data for _, parameter in self.parameters]
        try:
            for name, parameter in self.parameters:
                parameter.data = self._copy[name].to(parameter.device, parameter.dtype)
            yield
        finally:
            for (_, parameter), tensor in zip(self.parameters, live, strict=True):
                parameter.data = tensor
            self._inside = False

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self._copy)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore the state. Raises ``DataError`` if the copy belongs to other parameters."""
        fits = state.keys() == self._copy.keys() and all(
            state[name].shape == copy.shape for name, copy in self._copy.items()
        )
        if not fits:
            raise DataError("the old policy in the backup does not match the parameters that are trained now")
        for name, copy in self._copy.items():
            copy.copy_(state[name])
