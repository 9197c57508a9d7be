"""What brings the events of a run to a service: it reads events.jsonl in a separate process and writes nothing."""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from modules.runner.events import EventReader
from modules.runner.RunDirectory import RunDirectory
from modules.util.errors import UserError
from modules.util.owned_files import shown

POLL_SECONDS = 1.0
BATCH_BYTES = 4 << 20
Event = Mapping[str, Any]


class Tracker(ABC):
    """A service that shows runs. One file for each; none knows another."""

    @abstractmethod
    def take(self, event: Event) -> None:
        """Hand an event on.

        Raises:
            UserError: the service refuses it.
        """

    @abstractmethod
    def finish(self) -> None:
        """The run has ended, or nobody follows it any more."""


def package(name: str) -> Any:
    """An optional package. ``UserError`` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"{name} is not installed", "--to", f"pip install {name}") from error


def metrics_of(event: Event) -> dict[str, float]:
    """The finite numbers of a step or a validation."""
    found = event.get("metrics")
    if not isinstance(found, Mapping):
        return {}
    return {str(tag): float(value) for tag, value in found.items() if type(value) in (int, float)}


def step_of(event: Event) -> int:
    """The optimizer step an event belongs to; 0 if it does not say."""
    progress = event.get("progress")
    step = progress.get("global_step") if isinstance(progress, Mapping) else None
    return step if isinstance(step, int) else 0


def follow_run(
    folder: Path, tracker: Tracker, wait: Callable[[], None] = lambda: time.sleep(POLL_SECONDS)
) -> int:
    """Hand on all events of a run until it ends; how many there were.

    Args:
        wait: called when there is nothing new.

    Raises:
        UserError: there is no run in this folder, or the service refuses an event.
    """
    run = RunDirectory(folder)
    if not run.events_path.is_file():
        raise UserError(f"there is no run in {shown(folder)}", "RUN", "name a folder with events.jsonl")
    reader, count = EventReader(run.events_path), 0
    try:
        while True:
            events = reader.poll(BATCH_BYTES)
            for event in events:
                tracker.take(event)
                count += 1
            if reader.at_end:
                ended = events[-1]["kind"] == "run_finished" if events else _is_over(run)
                if ended:
                    return count
                wait()
    finally:
        tracker.finish()


def _is_over(run: RunDirectory) -> bool:
    """Whether no process works on the run; one that waits to begin counts as one."""
    return run.trainer() is None
