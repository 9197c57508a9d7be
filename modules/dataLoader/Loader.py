from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from modules.dataLoader.BaseDataLoader import AccumulationGroup
from modules.util.TrainProgress import TrainProgress

Weights = Callable[[int], AbstractContextManager[None]]
"""Puts the weights that make images at an optimizer step in place, for the length of a block."""


class Loader(Protocol):
    """What the training loop needs from a run's data, whether images are on disk or made during training."""

    world_size: int

    def __len__(self) -> int:
        """Images, pairs or prompts, not counting repeats."""

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
        """Called once before the first step, when the weights are final.

        Args:
            weights: what images that are made while training are made with.
        """

    def snapshot(self, progress: TrainProgress) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """What a backup has to hold besides the position; every process calls this.

        Returns:
            Tensors by name and JSON values, the same in every process; ``None`` where there is nothing.
        """

    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any] | None) -> None:
        """Restore what ``snapshot`` returned; ``DataError`` if it is damaged."""

    def close(self) -> None:
        """Release threads, files and memory."""
