"""The runs on this computer, each with what a list shows of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.runner.events import parse_event, step_of
from modules.runner.known_runs import known_runs
from modules.runner.RunDirectory import CONFIG_BYTES, RunDirectory
from modules.spec.registry import MODES
from modules.util.errors import UserError
from modules.util.jsonio import read_json

TAIL_BYTES = 1 << 16
SUPERVISED = "Images"
MAX_SIBLINGS = 1000
_LIVE, REMOTE = "running", "remote"


@dataclass(frozen=True)
class RunSummary:
    """One run.

    Args:
        when: time of its last event, seconds since 1970.
        mode: displayed name of its way of learning.
        steps, total_steps: optimizer steps done and planned; 0 if unknown.
        state: one of ``status.STATES``.
        config: its settings as plain data; empty if unreadable.
        adapter: the model it has saved, if it exists.
        has_backup: whether there is anything to resume from.
    """

    path: Path
    when: float
    mode: str
    steps: int
    total_steps: int
    state: str
    config: Mapping[str, Any]
    adapter: Path | None
    has_backup: bool


def list_runs(workspace: Path) -> list[RunSummary]:
    """The known runs of this computer and those next to ``workspace``, newest first. Slow."""
    found = (summary_of(path) for path in _folders(workspace))
    return sorted((one for one in found if one is not None), key=lambda one: one.when, reverse=True)


def _folders(workspace: Path) -> Iterator[Path]:
    seen: set[Path] = set()
    for path in (*reversed(known_runs()), workspace.absolute(), *_siblings(workspace.absolute())):
        if path not in seen:
            seen.add(path)
            yield path


def _siblings(workspace: Path) -> Iterable[Path]:
    try:
        with os.scandir(workspace.parent) as entries:
            names = sorted(entry.name for _, entry in zip(range(MAX_SIBLINGS), entries, strict=False))
    except OSError:  # nothing has been started there yet
        return []
    return [workspace.parent / name for name in names]


def summary_of(folder: Path) -> RunSummary | None:
    """Return what a list shows of a run; ``None`` if there is no run."""
    run = RunDirectory(folder)
    try:
        when = run.events_path.stat().st_mtime
        config = read_json(run.config_path, max_bytes=CONFIG_BYTES)
    except (OSError, UserError):
        return None
    config = config if isinstance(config, Mapping) else {}
    steps, total, state = 0, 0, "died"
    for event in _last_events(run.events_path):
        at = step_of(event)
        steps = steps if at is None else at
        planned = event.get("total_steps")
        total = planned if isinstance(planned, int) else total
        state = str(event.get("status")) if event.get("kind") == "run_finished" else "died"
    if run.is_live():
        state = _LIVE
    elif state == "died" and run.is_mirror:
        state = REMOTE
    backup = run.backup_dir.is_dir() and any(run.backup_dir.iterdir())
    return RunSummary(run.path, when, _mode(config), steps, total, state, config, _written(config), backup)


def _last_events(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - TAIL_BYTES))
        lines = stream.read().splitlines()
    for line in lines:
        # the first line is truncated, and the last may be incomplete
        if (event := parse_event(line)) is not None:
            yield event


def _mode(config: Mapping[str, Any]) -> str:
    mode = MODES.get(str(config.get("rlhf_mode", "")))
    return mode.label if config.get("rlhf_enabled") is True and mode is not None else SUPERVISED


def _written(config: Mapping[str, Any]) -> Path | None:
    name = config.get("output_model_destination")
    path = Path(name).absolute() if isinstance(name, str) and name else None
    return path if path is not None and path.exists() else None
