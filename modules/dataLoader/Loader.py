from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from modules.dataLoader.BaseDataLoader import AccumulationGroup
from modules.util.TrainProgress import TrainProgress

Weights = Callable[[int], AbstractContextManager[None]]
"""Inside a block, sets the weights that make images at an optimizer step."""


class Loader(Protocol):
    """The access of the training loop to a run's data, whether images are on disk or made during training."""

    world_size: int

    def __len__(self) -> int:
        """Number of images, pairs or prompts, not counting repeats."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps of the first epoch, if no image is skipped."""

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""

    def accumulation_groups(self, progress: TrainProgress) -> Iterator[AccumulationGroup]:
        """The optimizer steps of the run from a position on."""

    def data_digest(self) -> str:
        """Digest of the run's data."""

    def facts(self) -> dict[str, object]:
        """Metadata of a saved model: the data it was trained on."""

    def warnings(self) -> list[str]:
        """Findings since the last call."""

    def ready(self, weights: Weights) -> None:
        """Called once before the first step, when the weights are final."""

    def snapshot(self, progress: TrainProgress) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """Return the state that a backup must hold besides the position. Every process must call this.

        Returns:
            Tensors by name and JSON values, the same in every process; ``None`` if there is nothing to save.
        """

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any] | None) -> None:
        """Restore the result of ``snapshot``. Raises ``DataError`` if it is damaged."""

    def close(self) -> None:
        """Release threads, files and memory."""
