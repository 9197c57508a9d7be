"""The position of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from modules.util.errors import DataError


@dataclass
class TrainProgress:
    """Position of a run, counted in finished optimizer steps.

    Args:
        epoch: epochs finished.
        epoch_step: optimizer steps finished in the current epoch.
        epoch_sample: images or pairs seen in the current epoch, over all processes.
        global_step: optimizer steps finished in the run.
    """

    epoch: int = 0
    epoch_step: int = 0
    epoch_sample: int = 0
    global_step: int = 0

    def advance(self, samples: int) -> None:
        """Count one finished optimizer step over ``samples`` images or pairs."""
        self.epoch_step += 1
        self.epoch_sample += samples
        self.global_step += 1

    def next_epoch(self) -> None:
        """Count a finished epoch."""
        self.epoch += 1
        self.epoch_step = 0
        self.epoch_sample = 0

    def label(self) -> str:
        """``global-epoch-epochstep``, as used in file names."""
        return f"{self.global_step}-{self.epoch}-{self.epoch_step}"

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a position. Raises ``DataError`` for anything but four counts."""
        names = ("epoch", "epoch_step", "epoch_sample", "global_step")
        values = [data.get(name) for name in names]
        if any(not isinstance(v, int) or isinstance(v, bool) or v < 0 for v in values):
            raise DataError(f"{dict(data)} is not a position in a run", hint="the backup is damaged")
        return cls(**dict(zip(names, values, strict=True)))  # type: ignore[arg-type]
