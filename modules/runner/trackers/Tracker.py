"""Base of trackers, which send the events of a run to a service. They read events.jsonl in a separate process
and write nothing.
"""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from modules.runner.events import EventReader
from modules.runner.RunDirectory import RunDirectory
from modules.runner.status import read_status
from modules.util.errors import UserError
from modules.util.owned_files import shown

POLL_SECONDS = 1.0
BATCH_BYTES = 4 << 20
PATIENCE = 10
"""Number of looks at a run that is over before its end is no longer waited for."""
Event = Mapping[str, Any]


class Tracker(ABC):
    """A service that shows runs. Each has a file of its own and knows no other."""

    @abstractmethod
    def take(self, event: Event) -> None:
        """Send an event to the service.

        Raises:
            UserError: the service refuses it.
        """

    @abstractmethod
    def finish(self) -> None:
        """End tracking, because the run has ended or is no longer followed."""


def package(name: str) -> Any:
    """Import an optional package. Raises ``UserError`` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"{name} is not installed", "--to", f"pip install {name}") from error


def metrics_of(event: Event) -> dict[str, float]:
    """The finite metrics of a step or a validation."""
    found = event.get("metrics")
    if not isinstance(found, Mapping):
        return {}
    return {str(tag): float(value) for tag, value in found.items() if type(value) in (int, float)}


def follow_run(
    folder: Path, tracker: Tracker, wait: Callable[[], None] = lambda: time.sleep(POLL_SECONDS)
) -> int:
    """Send all events of a run until it ends. Returns their number. The end of a killed run that nobody else records is
    sent as well.

    Args:
        wait: called if there is nothing new.

    Raises:
        UserError: there is no run in this folder, or the service refuses an event.
    """
    run = RunDirectory(folder)
    if not run.events_path.is_file():
        raise UserError(f"there is no run in {shown(folder)}", "RUN", "name a folder with events.jsonl")
    reader, count, last, patience, over = EventReader(run.events_path), 0, "", PATIENCE, False
    begun = False
    try:
        while True:
            # asked before the events are read, so that those of a run that ends meanwhile are not missed
            over = over or (not run.is_mirror and not run.is_live())
            events = reader.poll(BATCH_BYTES)
            for event in events:
                tracker.take(event)
                count, last = count + 1, event["kind"]
                begun = begun or last == "run_started"
            if reader.at_end:
                told = last == "run_finished"
                # a watcher records the end of a killed run somewhat later
                patience = patience - 1 if over and not told else PATIENCE
                if (told and (over or run.is_mirror)) or not patience:
                    if begun and not told and read_status(run).state == "died":
                        # it was killed, and no watcher has recorded it
                        tracker.take({"kind": "error", "category": "died"})
                        tracker.take({"kind": "run_finished", "status": "failed"})
                    return count
                wait()
            over = over and not events
    finally:
        tracker.finish()
