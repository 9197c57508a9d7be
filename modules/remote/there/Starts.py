"""The starts that are copying files here. These files belong to no run yet, so nothing shared is removed meanwhile."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from modules.util.files.locking import try_lock, wait_for_lock
from modules.util.owned_files import Owned

STARTS = "starts"
_DOOR = "door"
"""Lock that is held while a start announces itself, and while shared files are removed."""


class Starts:
    """The locks of starts below a folder. The lock of a start that was killed is free.

    Args:
        root: the program's folder on this computer.
    """

    def __init__(self, root: Path) -> None:
        self._owned = Owned(root, local=True)
        self._own: tuple[str, IO[bytes]] | None = None

    def announce(self) -> None:
        """Keep what is stored from now on until ``end``, or until this process ends. May be repeated."""
        if self._own is not None:
            return
        with self._alone():
            name = f"{STARTS}/{secrets.token_hex(8)}.lock"
            handle = self._owned.plain_file(name).open("a+b")
            try_lock(handle)
            self._own = name, handle

    def end(self) -> None:
        """End what ``announce`` began. Does nothing otherwise."""
        if self._own is not None:
            name, handle = self._own
            handle.close()
            self._owned.remove(name)
            self._own = None

    @contextmanager
    def of_run(self, name: str) -> Iterator[None]:
        """Make other starts of a run wait, so that its files are those of the start whose trainer begins."""
        with self._alone(f"{name}.run"):
            yield

    @contextmanager
    def held_back(self) -> Iterator[bool]:
        """Make new starts wait. Yields whether no other start is copying."""
        with self._alone():
            yield not any(map(self._is_active, sorted((self._owned.root / STARTS).glob("*.lock"))))

    def _is_active(self, path: Path) -> bool:
        """Return whether another start holds this lock. The file of one that was killed is removed."""
        name = f"{STARTS}/{path.name}"
        if self._own is not None and name == self._own[0]:
            return False
        with self._owned.plain_file(name).open("a+b") as handle:
            if not try_lock(handle):
                return True
        self._owned.remove(name)
        return False

    @contextmanager
    def _alone(self, lock: str = _DOOR) -> Iterator[None]:
        self._owned.folder(STARTS)
        with self._owned.plain_file(f"{STARTS}/{lock}").open("a+b") as handle:
            wait_for_lock(handle)
            yield
