"""Identifies a process by its number and start time, because numbers are reused."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True)
class ProcessId:
    """A current or former process of this machine.

    Args:
        started: its start time, as text that is unique within the current boot of this machine.
    """

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The running process with this number; ``None`` if there is none (zombies do not count)."""
        started = _started(pid)
        return None if started is None else cls(pid, started)

    @classmethod
    def own(cls) -> Self:
        """This process."""
        found = cls.of(os.getpid())
        if found is None:
            raise RuntimeError("the system does not show this process to itself")
        return found

    @classmethod
    def from_dict(cls, data: object) -> Self | None:
        """Read the output of ``to_dict``; ``None`` for anything else."""
        if not isinstance(data, Mapping):
            return None
        pid, started = data.get("pid"), data.get("started")
        if type(pid) is not int or not 0 < pid < 1 << 31 or not isinstance(started, str):
            return None
        return cls(pid, started)

    def to_dict(self) -> dict[str, Any]:
        return {"pid": self.pid, "started": self.started}

    def alive(self) -> bool:
        """Return whether this very process is still running, rather than another one with its number."""
        return _started(self.pid) == self.started

    def end(self, grace: float = 10.0) -> None:
        """End the process and its descendants: first by request, after ``grace`` seconds by force."""
        import psutil

        if not self.alive():
            return
        try:
            top = psutil.Process(self.pid)
            family = [*top.children(recursive=True), top]
        except psutil.NoSuchProcess:
            return
        for action in ("terminate", "kill"):
            for process in family:
                try:
                    getattr(process, action)()
                except psutil.NoSuchProcess:
                    continue
            _, family = psutil.wait_procs(family, timeout=grace)
            if not family:
                return


def _started(pid: int) -> str | None:
    if sys.platform == "linux":
        return _started_linux(pid)
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.3f}"
    except psutil.Error:
        return None


def _started_linux(pid: int) -> str | None:
    # Clock ticks since boot are exact. Wall-clock time would change whenever the clock is set.
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in brackets may itself contain spaces and brackets, so fields are counted from its end.
    state, *rest = text.rpartition(")")[2].split()
    return None if state in "ZX" else f"{_boot()}:{rest[18]}"


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
