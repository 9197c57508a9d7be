"""A file lock that is released when its process ends."""

from __future__ import annotations

import errno
import os
import time
from typing import IO

from modules.util.errors import UserError

_HELD = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK, errno.EINTR})
"""Numbers of errors that mean that another handle holds the lock; Windows has several."""


def try_lock(handle: IO[bytes]) -> bool:
    """Try to lock an open file exclusively without waiting. Return ``False`` if another handle holds the lock."""
    try:
        _lock(handle)
    except OSError:
        return False
    return True


def lock_within(handle: IO[bytes], seconds: float, pause: float = 0.01) -> bool:
    """``try_lock``, again and again for up to this many seconds."""
    until = time.monotonic() + seconds
    while not try_lock(handle):
        if time.monotonic() >= until:
            return False
        time.sleep(pause)
    return True


def wait_for_lock(handle: IO[bytes]) -> None:
    """Lock an open file exclusively, and wait as long as another handle holds the lock.

    Raises:
        UserError: the file system cannot lock files, so waiting would never end.
    """
    while True:
        try:
            return _lock(handle)
        except OSError as error:
            if error.errno not in _HELD:
                raise UserError(
                    f"{handle.name} cannot be locked ({error.strerror or error})",
                    hint="use a folder on a disk of this computer: some network drives cannot lock files",
                ) from error
        time.sleep(0.2)


def _lock(handle: IO[bytes]) -> None:
    if os.name == "nt":
        import msvcrt

        handle.seek(0)
        msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
