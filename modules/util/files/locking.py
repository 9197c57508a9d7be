"""A claim on a file that dies with its process."""

from __future__ import annotations

import os
from typing import IO


def try_lock(handle: IO[bytes]) -> bool:
    """Take an exclusive lock on an open file without waiting; ``False`` when another handle has it."""
    try:
        if os.name == "nt":
            import msvcrt

            handle.seek(0)
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
