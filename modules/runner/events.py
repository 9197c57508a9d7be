"""Events of a run: one JSON object per line, appended and flushed.

The writer is the training process, the readers are windows and command lines. A line is complete, unless it
is the last one of a process that died; readers ignore incomplete lines. ``docs/runs.md`` lists the kinds and
their fields.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modules.runner.commands import Command
from modules.util.errors import refused_as

KINDS = (
    "memory_plan", "run_started", "phase", "step", "validation", "sample", "backup", "save", "command",
    "votes_wanted", "votes_counted", "warning", "error", "run_finished",
)  # fmt: skip
COMMAND_STATES = ("taken", "done", "failed")
ERROR_CATEGORIES = ("user", "gpu_memory", "memory", "disk", "crash", "killed", "setup", "bug")
FINISH_STATUSES = ("finished", "stopped", "failed")
MAX_LINE = 1 << 20
_FINGERPRINT = 64


def _plain(value: Any) -> Any:
    """Convert to JSON without NaN and infinity, which become the words ``nan``, ``inf``, ``-inf``."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item"):  # a scalar of numpy or torch, neither of which is imported here
        return _plain(value.item())
    raise TypeError(f"an event holds plain values, not {type(value).__name__}")


SAMPLING = "making sample"
"""Prefix of the names of phases in which a sample is made."""


class EventWriter:
    """Appends events to ``events.jsonl``. Sequence numbers continue those of earlier processes of the run.

    Safe to use from several threads. One process writes at a time (``RunDirectory.lock``).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._sequence = last_sequence(self.path)
        self._torn = not _ends_with_newline(self.path)
        self._stream = self.path.open("ab", buffering=0)
        self._lock = threading.Lock()

    @property
    def sequence(self) -> int:
        """Sequence number of the last event."""
        return self._sequence

    def emit(self, kind: str, **fields: Any) -> int:
        """Write one event and return its number.

        Args:
            kind: one of ``KINDS``.
            fields: plain values, lists and dicts of them, paths, scalars of numpy and torch.

        Raises:
            UserError: the disk is full or the file is not accessible.
        """
        if kind not in KINDS:
            raise ValueError(f"unknown event kind {kind!r}")
        if not fields.keys().isdisjoint({"t", "seq"}):
            raise ValueError("t and seq are given by the writer")
        plain = _plain(fields)
        with self._lock:
            sequence = self._sequence + 1
            event = {"t": time.time(), "seq": sequence, "kind": kind, **plain}
            # ASCII, because file names may contain bytes that are not text and cannot be encoded
            # otherwise.
            line = json.dumps(event, allow_nan=False).encode("ascii") + b"\n"
            if len(line) > MAX_LINE:
                raise ValueError(f"an event of {len(line)} bytes is too large")
            self._append(b"\n" + line if self._torn else line)
            self._sequence = sequence
            return sequence

    def answer(self, command: Command, state: str, message: str = "") -> int:
        """Write the ``command`` event that tells the sender the outcome of a command (``COMMAND_STATES``)."""
        if state not in COMMAND_STATES:
            raise ValueError(f"unknown state of a command {state!r}")
        return self.emit("command", id=command.id, command=command.kind, state=state, message=message)

    def _append(self, data: bytes) -> None:
        rest = memoryview(data)
        self._torn = True
        with refused_as(
            f"the event file {self.path} cannot be written",
            hint="free some space on the disk, then resume from the last backup",
        ):
            while rest:
                rest = rest[self._stream.write(rest) :]
        self._torn = False

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ends_with_newline(path: Path) -> bool:
    """Return whether the next line can simply be appended; true for a missing or empty file."""
    if not path.exists() or path.stat().st_size == 0:
        return True
    with path.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"\n"


def last_sequence(path: str | os.PathLike[str]) -> int:
    """Number of the last event in a file; 0 if there is none."""
    try:
        with Path(path).open("rb") as stream:
            end = stream.seek(0, os.SEEK_END)
            tail = b""
            while end > 0:
                start = max(0, end - MAX_LINE)
                stream.seek(start)
                *lines, tail = (stream.read(end - start) + tail).split(b"\n")[::-1]
                # ``tail`` is the earliest piece; it is a complete line only at the start of the file.
                for line in lines if start else [*lines, tail]:
                    event = parse_event(line)
                    if event is not None:
                        return int(event["seq"])
                end = start
    except FileNotFoundError:
        return 0
    return 0


def parse_event(line: bytes) -> dict[str, Any] | None:
    """Parse an event; ``None`` for anything else, such as a torn line."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    valid = isinstance(event, dict) and isinstance(event.get("kind"), str) and type(event.get("seq")) is int
    return event if valid else None


def step_of(event: Mapping[str, Any]) -> int | None:
    """The optimizer step an event belongs to; ``None`` if unknown."""
    progress = event.get("progress")
    step = progress.get("global_step") if isinstance(progress, Mapping) else None
    return step if type(step) is int else None


class EventReader:
    """Reads events from the start of the file as they are written.

    ``damaged`` counts lines that were not events. ``at_end`` says whether the last ``poll`` reached the end.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.damaged = 0
        self.at_end = False
        self._restart()

    def _restart(self) -> None:
        self._offset = 0
        self._inode: int | None = None
        self._head = b""
        self._rest = b""

    def poll(self, max_bytes: int | None = None) -> list[dict[str, Any]]:
        """Read the complete events since the last call; from the start again if the file was replaced.

        Args:
            max_bytes: maximum size to read at once; call again until ``at_end`` for the rest.
        """
        try:
            with self.path.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                head = stream.read(_FINGERPRINT)
                inode = os.fstat(stream.fileno()).st_ino
                if inode != self._inode or size < self._offset or not head.startswith(self._head):
                    self._restart()
                self._inode, self._head = inode, head
                stream.seek(self._offset)
                data = stream.read() if max_bytes is None else stream.read(max_bytes)
        except (FileNotFoundError, NotADirectoryError):
            self.at_end = True
            return []
        self._offset += len(data)
        self.at_end = self._offset >= size
        return self._events(data)

    def _events(self, data: bytes) -> list[dict[str, Any]]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            self._rest, self.damaged = b"", self.damaged + 1
        events = []
        for line in lines:
            event = parse_event(line)
            if event is not None:
                events.append(event)
            elif line.strip():
                self.damaged += 1
        return events
