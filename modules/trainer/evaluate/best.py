"""The weights with the best validation, kept until the end of the run."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from modules.util.errors import DataError, UserError, refused_as
from modules.util.jsonio import atomic_path
from modules.util.owned_files import Owned
from modules.util.tensors.tensor_files import DIGEST, tensor_hash, write_safetensors

_log = logging.getLogger(__name__)
DECIMALS = 5
Named = Sequence[tuple[str, torch.nn.Parameter]]


class BestKeeper:
    """Writes the trained tensors on every new best result: highest accuracy, then lowest validation loss.

    A file belongs to one step and is never changed. Backups can therefore share it by a hard link, and a run
    resumed from an older backup still has the best weights of that time.

    Args:
        parameters: names and trained parameters.
        writes: whether this process writes; the others only track the results.
        by_accuracy: whether the accuracy counts; otherwise only the loss does.
    """

    def __init__(
        self, folder: Path, parameters: Named, writes: bool = True, by_accuracy: bool = True
    ) -> None:
        self.folder = folder
        self.parameters = list(parameters)
        self.writes, self.by_accuracy = writes, by_accuracy
        self.step: int | None = None
        self.accuracy, self.loss = -math.inf, math.inf
        self._replaced: list[Path] = []

    @property
    def path(self) -> Path | None:
        """The file of the best weights so far."""
        return None if self.step is None else self._file(self.step)

    def offer(self, step: int, accuracy: float, loss: float) -> bool:
        """Save the current weights if they are better than the best so far. NaN never is.

        Raises:
            UserError: the file cannot be written. The best so far stays.
        """
        if not math.isfinite(accuracy) or not math.isfinite(loss):
            return False
        accuracy = round(accuracy, DECIMALS) if self.by_accuracy else 0.0
        if (-accuracy, loss) >= (-self.accuracy, self.loss):
            return False
        former, fresh = self.path, self._file(step)
        if self.writes:
            write_tensors(fresh, dict(self.parameters), "the best weights")
        self.step, self.accuracy, self.loss = step, accuracy, loss
        if self.writes and former is not None and former != fresh:
            self._replaced.append(former)
            self._remove_replaced()
        return True

    def _remove_replaced(self) -> None:
        """Remove replaced files. If one cannot be removed, a warning names it and the next offer tries again."""
        kept = []
        for path in self._replaced:
            try:
                Owned(self.folder, local=True).remove(path.name)
            except (OSError, UserError) as error:
                kept.append(path)
                _log.warning("the previous best weights, %s, cannot be removed: %s", path, error)
        self._replaced = kept

    def _file(self, step: int) -> Path:
        return self.folder / f"best-{step}.safetensors"

    @torch.no_grad()
    def restore(self) -> None:
        """Set the parameters to the best values.

        Raises:
            DataError: the file is missing or damaged, or holds other weights.
        """
        if self.path is None:
            raise RuntimeError("there is no best yet")
        state = read_tensors(self.path, "the best weights")
        if {n: t.shape for n, t in state.items()} != {n: p.shape for n, p in self.parameters}:
            raise DataError(f"{self.path} does not hold the weights that are trained now")
        for name, parameter in self.parameters:
            parameter.copy_(state[name])

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        if self.step is None:
            return {}
        best = {"step": self.step, "accuracy": self.accuracy, "loss": self.loss}
        return best | {"by_accuracy": self.by_accuracy}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state. The caller must put the file in place.

        Weights that were the best by another measure are not the best of this run.
        """
        if state and state.get("by_accuracy", True) == self.by_accuracy:
            self.step = int(state["step"])
            self.accuracy, self.loss = float(state["accuracy"]), float(state["loss"])


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], what: str) -> None:
    """Write tensors as safetensors, atomically. Raises ``UserError`` with ``what`` if that fails."""
    refused = refused_as(f"{what} cannot be written to {path}", hint="make room on the disk")
    with refused, atomic_path(path) as temporary:
        write_safetensors(tensors, temporary, {DIGEST: tensor_hash(tensors)})


def read_tensors(path: Path, what: str) -> dict[str, torch.Tensor]:
    """Read safetensors. Raises ``DataError`` with ``what`` if that fails, or if the content is not what was
    written.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            digest = (file.metadata() or {}).get(DIGEST)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{what} in {path} cannot be read: {error}") from error
    if digest not in (None, tensor_hash(tensors)):
        raise DataError(f"{what} in {path} are damaged: they are not those that were written")
    return tensors
