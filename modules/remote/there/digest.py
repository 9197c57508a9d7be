"""Hashes of files."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

from modules.remote.there.limits import MAX_FILE


class Stopped(Exception):
    """Nobody waits for the hash any more."""


def digest_of(path: Path, size: int | None = None, stop: threading.Event | None = None) -> str:
    """SHA-256 of a file, or of its first ``size`` bytes.

    Args:
        stop: ends it early if it is set meanwhile, in another thread.

    Raises:
        OSError: the file cannot be read. Stopped: ``stop`` was set.
    """
    made, left = hashlib.sha256(), MAX_FILE if size is None else size
    with path.open("rb") as stream:
        while left and (block := stream.read(min(left, 1 << 20))):
            if stop is not None and stop.is_set():
                raise Stopped
            made.update(block)
            left -= len(block)
    return made.hexdigest()
