"""A file lock that is released when its process ends."""

from __future__ import annotations

import os
from typing import IO


def try_lock(handle: IO[bytes]) -> bool:
    """Try to lock an open file exclusively without waiting. Return ``False`` if another handle holds the lock."""
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
