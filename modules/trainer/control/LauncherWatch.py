"""Detects when the launcher of this process is gone, so that no process of a run outlives it."""

from __future__ import annotations

import json
import os
import sys
import threading

from modules.runner.ProcessId import ProcessId
from modules.trainer.control.PeerWatch import EXIT_STATUS, HINT, PeerLost

LAUNCHER_VARIABLE = "TASTEMAKER_LAUNCHER"
"""The process that started this one, because the system names another parent once that one has ended."""
LOOK_SECONDS = 1.0
LEAVING_SECONDS = 5.0
"""Time that this process may take to end by itself; it may be waiting in a library for another one."""


class LauncherWatch:
    """A thread that looks whether the launcher is still running. Once it is not, ``lost`` is set, and this process is
    ended if it does not end by itself.

    Args:
        launcher: the launcher; ``None`` if it is already gone.
    """

    def __init__(self, launcher: ProcessId | None) -> None:
        self._launcher = launcher
        self._leaving = threading.Event()
        self.lost: PeerLost | None = None
        threading.Thread(target=self._run, name="LauncherWatch", daemon=True).start()

    @classmethod
    def begin(cls) -> LauncherWatch | None:
        """Watch the launcher of this process; ``None`` if it has none."""
        told = os.environ.get(LAUNCHER_VARIABLE)
        if told is not None:
            return cls(ProcessId.from_dict(json.loads(told)))
        return cls(ProcessId.of(os.getppid())) if "TORCHELASTIC_RUN_ID" in os.environ else None

    def look(self) -> PeerLost | None:
        """Return whether the launcher is gone, at this moment."""
        if self.lost is None and (self._launcher is None or not self._launcher.alive()):
            self.lost = PeerLost("the process that started this one was killed")
        return self.lost

    def leave(self) -> None:
        """This process ends, and need not be ended."""
        self._leaving.set()

    def _run(self) -> None:
        while self.look() is None:
            if self._leaving.wait(LOOK_SECONDS):
                return
        if not self._leaving.wait(LEAVING_SECONDS):
            sys.stderr.write(f"error: {self.lost}\n  -> {HINT}\n")
            sys.stderr.flush()
            os._exit(EXIT_STATUS)
