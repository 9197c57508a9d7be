"""Identifies a process by its number and its start time, because numbers are reused."""

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
    """One process, now or earlier, on this machine.

    Args:
        pid: its number.
        started: when it started, as text that is unique within the current boot of this machine.
    """

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The living process with this number; ``None`` when there is none (a zombie is none)."""
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
        """What ``to_dict`` wrote; ``None`` for anything else."""
        if not isinstance(data, Mapping):
            return None
        pid, started = data.get("pid"), data.get("started")
        if type(pid) is not int or not 0 < pid < 1 << 31 or not isinstance(started, str):
            return None
        return cls(pid, started)

    def to_dict(self) -> dict[str, Any]:
        return {"pid": self.pid, "started": self.started}

    def alive(self) -> bool:
        """Whether it still runs, and not another process under its number."""
        return _started(self.pid) == self.started

    def end(self, grace: float = 10.0) -> None:
        """End it and every process below it: first a request, after ``grace`` seconds by force."""
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
    # Clock ticks since boot are exact. A time of day would move whenever the clock is set.
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in brackets may itself hold blanks and brackets; fields count from the last one.
    state, *rest = text.rpartition(")")[2].split()
    return None if state in "ZX" else f"{_boot()}:{rest[18]}"


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
