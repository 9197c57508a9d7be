"""What a run says about itself: one JSON object a line, appended and flushed.

The writer is the training process, readers are windows and command lines. A line is complete or it is the last one
of a process that died; a reader never sees half a line as an event.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

KINDS = (
    "run_started", "phase", "step", "validation", "sample", "backup", "save", "command", "warning", "error",
    "run_finished",
)  # fmt: skip
MAX_LINE = 1 << 20


def _plain(value: Any) -> Any:
    """JSON without NaN and infinity, which become the words ``nan``, ``inf``, ``-inf``."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


class EventWriter:
    """Appends events to ``events.jsonl``; numbers go on where an earlier process of the run left off."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._sequence = _last_sequence(self.path)
        torn = self.path.exists() and self.path.stat().st_size > 0 and not _ends_with_newline(self.path)
        self._stream = self.path.open("ab", buffering=0)
        if torn:
            self._stream.write(b"\n")

    def emit(self, kind: str, **fields: Any) -> None:
        """Write one event in a single call to the system, so that lines never mix."""
        if kind not in KINDS:
            raise ValueError(f"unknown event kind {kind!r}")
        self._sequence += 1
        event = {"t": time.time(), "seq": self._sequence, "kind": kind, **_plain(fields)}
        self._stream.write(json.dumps(event, ensure_ascii=False, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        self._stream.close()


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"\n"


def _last_sequence(path: Path) -> int:
    if not path.exists():
        return 0
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - 2 * MAX_LINE))
        lines = stream.read().split(b"\n")
    for line in reversed(lines):
        event = _parse(line)
        if event is not None:
            return int(event["seq"])
    return 0


def _parse(line: bytes) -> dict[str, Any] | None:
    """An event, or ``None`` for anything else: a torn line, or garbage."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    valid = isinstance(event, dict) and isinstance(event.get("kind"), str) and type(event.get("seq")) is int
    return event if valid else None


class EventReader:
    """Reads events as they come. ``damaged`` counts lines that were no events."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.damaged = 0
        self._offset = 0
        self._inode: int | None = None
        self._rest = b""

    def poll(self) -> list[dict[str, Any]]:
        """The complete events written since the last call; from the start again if the file was replaced."""
        try:
            with self.path.open("rb") as stream:
                state = os.fstat(stream.fileno())
                if state.st_ino != self._inode or state.st_size < self._offset:
                    self._inode, self._offset, self._rest = state.st_ino, 0, b""
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            self._rest, self.damaged = b"", self.damaged + 1
        events = []
        for line in lines:
            event = _parse(line) if line.strip() else None
            if event is not None:
                events.append(event)
            elif line.strip():
                self.damaged += 1
        return events
