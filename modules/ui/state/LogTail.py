"""Follows the end of a growing log file. No Tk here."""

from __future__ import annotations

import os
from pathlib import Path

from modules.ui.texts.run import LOG_UNREADABLE

FIRST_BYTES = 64 * 1024
MAX_BYTES = 128 * 1024


class LogTail:
    """Reads what was appended since the last poll.

    Args:
        path: the file, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset: int | None = None
        self._rest = b""
        self._fault = ""

    def poll(self) -> tuple[str, bool]:
        """Read new complete lines, and whether they replace everything shown (the file is new or was truncated). If
        the file cannot be read, a line says so, once.
        """
        try:
            with self.path.open("rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                fresh = self._offset is None or size < self._offset
                start = max(0, size - FIRST_BYTES) if fresh or self._offset is None else self._offset
                if size - start > MAX_BYTES:
                    start, fresh = size - MAX_BYTES, True
                stream.seek(start)
                data = stream.read(size - start)
        except FileNotFoundError:
            return "", False
        except OSError as error:
            # a disk of another computer may be back soon
            before, self._fault = self._fault, error.strerror or str(error)
            told = LOG_UNREADABLE.format(path=self.path, reason=self._fault)
            return "" if before == self._fault else f"{told}\n", False
        self._fault = ""
        if fresh:
            self._rest = b""
        self._offset = start + len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return "".join(f"{_final(line)}\n" for line in lines), fresh


def _final(line: bytes) -> str:
    """Return the final state of a line that was overwritten repeatedly, such as a progress bar."""
    text = line.decode("utf-8", errors="replace").rstrip("\r")
    return text.rpartition("\r")[2].replace("\x1b[K", "")
