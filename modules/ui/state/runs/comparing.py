"""Comparison of runs on the Runs page: curves, settings, samples. No Tk here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modules.runner.RunDirectory import RunDirectory
from modules.ui.state.RunHistory import RunHistory, SampleImage

MAX_EVENT_BYTES = 1 << 28
_LEFT_OUT = {"__version", "workspace_dir", "cache_dir", "output_model_destination"}
_FILES = {"concept_file_name": "concepts", "sample_definition_file_name": "samples"}
"""Files whose location is left out if the config holds what is in them."""


@dataclass(frozen=True)
class Difference:
    """A setting that differs between runs, with one text per run."""

    path: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class GridImage:
    """A cell of the grid of samples."""

    path: Path
    title: str


@dataclass(frozen=True)
class Grid:
    """Samples by prompt (rows) and checkpoint (columns). Cells may be empty."""

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    cells: Mapping[tuple[int, int], GridImage] = field(default_factory=dict)


def history_of(folder: Path) -> RunHistory:
    """Everything a run has reported. Slow for long runs."""
    made = RunHistory()
    made.take(RunDirectory(folder).reader().poll(MAX_EVENT_BYTES))
    return made


def differences(configs: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """The settings that differ between runs, in the order of the first run. File locations are left out."""
    flat = [
        _flat({name: config[name] for name in config if config.get(_FILES.get(name, "")) is None})
        for config in configs
    ]
    names = dict.fromkeys(name for one in flat for name in one)
    found = (Difference(name, tuple(one.get(name, "") for one in flat)) for name in names)
    return [one for one in found if len(set(one.values)) > 1]


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    made: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            made |= _flat(value, f"{prefix}{name}.")
        elif name not in _LEFT_OUT:
            made[prefix + name] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return made


def sample_grid(runs: Sequence[tuple[str, Path, Sequence[SampleImage]]], at_step: str) -> Grid:
    """The samples of runs side by side. Runs share a row for the same prompt.

    Args:
        runs: name, folder and samples of each run.
        at_step: format of a column's title, with ``run`` and ``step``.
    """
    rows: dict[str, int] = {}
    columns: list[str] = []
    cells: dict[tuple[int, int], GridImage] = {}
    for name, folder, samples in runs:
        for step in sorted({sample.step for sample in samples}):
            title = (
                at_step.format(run=name, step=step) if len(runs) > 1 else at_step.format(run="", step=step)
            )
            columns.append(title.strip())
            for sample in (one for one in samples if one.step == step):
                row = rows.setdefault(sample.prompt, len(rows))
                path = Path(sample.path)
                place = path if path.is_absolute() else folder / path
                cells[row, len(columns) - 1] = GridImage(place, f"{sample.prompt}  \u2013  {columns[-1]}")
    return Grid(tuple(rows), tuple(columns), cells)
