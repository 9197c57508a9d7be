"""A config of OneTrainer as the import reads it."""

from __future__ import annotations

from pathlib import Path

from modules.util.config.foreign.Notes import Note
from modules.util.config.onetrainer.onetrainer_import import read_onetrainer
from modules.util.config.TrainConfig import TrainConfig


def import_onetrainer(path: str | Path, lenient: bool = False) -> tuple[TrainConfig, list[Note]]:
    """The config, and a line for each setting that is not imported unchanged."""
    config, notes = read_onetrainer(path, lenient)
    return config, notes.listed()
