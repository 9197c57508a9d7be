"""A moving average of the trained weights, kept in addition to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from modules.util.errors import DataError

Named = Sequence[tuple[str, torch.nn.Parameter]]


def decay_at(step: int, highest: float) -> float:
    """Share of the average kept at optimizer step ``step`` (from 0): small at first, so that the initial
    values are forgotten, then rising to ``highest``.
    """
    return min(highest, (1 + step) / (10 + step))


class MovingAverage:
    """float32 averages of parameters.

    Args:
        parameters: names and parameters; the averages start at their values.
        decay: highest decay.
        interval: optimizer steps between updates.
        device: device of the averages.
    """

    def __init__(self, parameters: Named, decay: float, interval: int, device: torch.device | str) -> None:
        self.parameters = list(parameters)
        self.decay, self.interval = decay, interval
        self._average = {
            name: parameter.detach().to(device, torch.float32, copy=True)
            for name, parameter in self.parameters
        }
        self.begun = False
        """False while the averages are still those initial values."""

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update after optimizer step ``step`` (from 0); does nothing between the intervals."""
        if (step + 1) % self.interval:
            return
        self.begun = True
        weight = 1.0 - decay_at(step, self.decay)
        for name, parameter in self.parameters:
            average = self._average[name]
            average.lerp_(parameter.detach().to(average.device, torch.float32), weight)

    @torch.no_grad()
    def copy_to_parameters(self) -> None:
        """Copy the averages into the parameters permanently."""
        for name, parameter in self.parameters:
            parameter.copy_(self._average[name])

    @contextmanager
    def swapped_in(self, keep: bool = True) -> Iterator[None]:
        """Inside the block, the parameters hold the averages; afterwards exactly their former values.

        Args:
            keep: whether to restore the former values here; otherwise the caller does.
        """
        with kept([parameter for _, parameter in self.parameters] if keep else []):
            self.copy_to_parameters()
            yield

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self._average)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, torch.Tensor], begun: bool) -> None:
        """Restore the state.

        Args:
            begun: whether the averages had been updated.

        Raises:
            DataError: the averages belong to other parameters.
        """
        fits = state.keys() == self._average.keys() and all(
            state[name].shape == average.shape for name, average in self._average.items()
        )
        if not fits:
            raise DataError("the moving average in the backup does not match the parameters that are trained now")
        for name, average in self._average.items():
            average.copy_(state[name])
        self.begun = begun


@contextmanager
def kept(parameters: Sequence[torch.nn.Parameter]) -> Iterator[None]:
    """Restores the values of the parameters after the block, bit for bit.

    The copies are in main memory, because those of a whole model may not fit on its device.
    """
    copies = [parameter.detach().to("cpu", copy=True) for parameter in parameters]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, copy in zip(parameters, copies, strict=True):
                parameter.copy_(copy)
