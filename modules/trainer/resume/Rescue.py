"""Writes a backup when the device runs out of memory."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from modules.model.memory import give_back


class Rescue:
    """Writes a backup when the device's memory is exhausted, before the run ends with that error.

    Attributes:
        whole: whether the weights are those of one optimizer step; must be false while they change.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.whole = True

    @contextmanager
    def watching(self, free: Callable[[], None], backup: Callable[[], object]) -> Iterator[None]:
        """Run a block. After an out-of-memory error, write a backup if the weights are whole, then raise.

        Args:
            free: releases what the current step holds.
            backup: writes the backup and reports its own failures.
        """
        try:
            yield
        except torch.OutOfMemoryError as error:
            # its frames hold what filled the device
            traceback.clear_frames(error.__traceback__)
            if self.whole:
                free()
                give_back(self._device)
                backup()
            raise
