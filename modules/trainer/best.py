"""The weights with the best validation, kept until the end of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from modules.util.errors import DataError
from modules.util.jsonio import atomic_path

DECIMALS = 5
Named = Sequence[tuple[str, torch.nn.Parameter]]


class BestKeeper:
    """Writes the trained tensors on every new best: highest accuracy, then lowest validation loss.

    A file belongs to one step and is never changed, so backups can share it by a hard link and a run that continues
    from an older backup still has the best it had then.

    Args:
        folder: where the file is kept.
        parameters: names and trained parameters.
        writes: whether this process writes; the others only keep count.
    """

    def __init__(self, folder: Path, parameters: Named, writes: bool = True) -> None:
        self.folder = folder
        self.parameters = list(parameters)
        self.writes = writes
        self.step: int | None = None
        self.accuracy, self.loss = -math.inf, math.inf

    @property
    def path(self) -> Path | None:
        """The file of the best so far."""
        return None if self.step is None else self.folder / f"best-{self.step}.safetensors"

    def offer(self, step: int, accuracy: float, loss: float) -> bool:
        """Keep the present weights if they are better than the best so far; NaN never is."""
        accuracy = round(accuracy, DECIMALS) if math.isfinite(accuracy) else accuracy
        if not math.isfinite(loss) or (-accuracy, loss) >= (-self.accuracy, self.loss):
            return False
        former = self.path
        self.step, self.accuracy, self.loss = step, accuracy, loss
        if self.writes:
            write_tensors(self._file(), dict(self.parameters))
            if former is not None and former != self.path:
                former.unlink(missing_ok=True)
        return True

    def _file(self) -> Path:
        if self.path is None:
            raise RuntimeError("there is no best yet")
        return self.path

    @torch.no_grad()
    def restore(self) -> None:
        """Give the parameters the best values.

        Raises:
            DataError: the file is gone or damaged.
        """
        state = read_tensors(self._file(), "the best weights")
        for name, parameter in self.parameters:
            parameter.copy_(state[name])

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        if self.step is None:
            return {}
        return {"step": self.step, "accuracy": self.accuracy, "loss": self.loss}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue; the file must be put in place by the caller."""
        if state:
            self.step = int(state["step"])
            self.accuracy, self.loss = float(state["accuracy"]), float(state["loss"])


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors as safetensors, atomically."""
    from safetensors.torch import save_file

    with atomic_path(path) as temporary:
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, temporary)


def read_tensors(path: Path, what: str) -> dict[str, torch.Tensor]:
    """Read safetensors; ``DataError`` naming ``what`` if that is not possible."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{what} in {path} cannot be read: {error}") from error
