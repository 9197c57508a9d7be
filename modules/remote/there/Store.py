"""Files on the other computer, each stored once under the hash of its content, and trees of links to them.

A stored file is sealed: it is read-only and has a date that no other file has. A file that was modified later
has another date, and is read again before it is used. Trees consist of hard links, so that ten runs on one
model need its space once.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from modules.remote.there.digest import digest_of
from modules.remote.there.limits import MAX_PIECE, SHA256
from modules.util.errors import UserError
from modules.util.files.locking import wait_for_lock
from modules.util.owned_files import Owned, shown

SEALED = 1_000_000_007
"""The date of a stored file, in seconds since 1970."""
STORE, PARTIAL = "store", "partial"

Read = Callable[[int], bytes]
"""Reads exactly this many bytes from the other side."""


class Store:
    """The stored files below a folder.

    Args:
        root: the program's folder on this computer.
    """

    def __init__(self, root: Path) -> None:
        # names come from the owner of this account; those that lead out of the folder are refused
        self.owned = Owned(root, local=True)

    def has(self, sha256: str, size: int) -> int:
        """Number of bytes of a file that are here: ``size`` if it is complete, else fewer; -1 for an empty
        file.
        """
        return size if self._whole(sha256, size) else min(size - 1, self._received(sha256))

    def _received(self, sha256: str) -> int:
        """Number of bytes that arrived before a connection ended."""
        try:
            return (self.owned.root / self._partial(sha256)).lstat().st_size
        except FileNotFoundError:
            return 0

    def _whole(self, sha256: str, size: int) -> bool:
        path = self.owned.root / self._place(sha256)
        try:
            found = path.lstat()
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            return False
        if int(found.st_mtime) != SEALED:
            if digest_of(path) != sha256:
                return False
            _seal(path)
        return True

    def take_small(self, wanted: list[tuple[str, int]], read: Read) -> None:
        """Receive and store files one after the other.

        Raises:
            UserError: a file differs from what was announced.
        """
        for sha256, size in wanted:
            if size > MAX_PIECE:
                raise UserError(f"a file of {size} bytes is too large to be sent with others")
            data = read(size)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise UserError("a file changed while it was copied", hint="start again")
            if not self._whole(sha256, size):
                with self.owned.write(self._place(sha256)) as temporary:
                    temporary.write_bytes(data)
                _seal(self.owned.root / self._place(sha256))

    def take_large(self, sha256: str, size: int, read: Read, begin: Callable[[int], None]) -> None:
        """Receive a file from where an earlier attempt ended, and store it if its hash is correct.

        Args:
            begin: called before ``read`` with the offset of the first byte needed; ``size`` if none is.

        Raises:
            UserError: the file differs from what was announced.
        """
        partial = self._partial(sha256)
        with self._alone(sha256):
            whole = self._whole(sha256, size)
            offset = size if whole else min(size, self._received(sha256))
            begin(offset)
            if whole:
                return
            while offset < size:
                block = read(min(MAX_PIECE, size - offset))
                self.owned.append(partial, block)
                offset += len(block)
            path = self.owned.root / partial
            if digest_of(path) != sha256:
                self.owned.remove(partial)
                raise UserError("a file changed while it was copied", hint="start again")
            self.owned.move(partial, self._place(sha256), replace=True)
            _seal(self.owned.root / self._place(sha256))

    @contextmanager
    def _alone(self, sha256: str) -> Iterator[None]:
        """Make another start that copies the same file wait until this one has finished or ended."""
        name = f"{PARTIAL}/{sha256}.lock"
        self.owned.folder(PARTIAL)
        with self.owned.plain_file(name).open("a+b") as handle:
            wait_for_lock(handle)
            yield
            self.owned.remove(name)

    def plant(self, root: str, files: Mapping[str, tuple[str, int]], alone: bool = False) -> list[str]:
        """Link stored files into a folder. Returns the names of files that are not stored.

        Args:
            root: the folder, below the program's.
            files: name in the folder to hash and size.
            alone: whether other files in the folder are removed.

        Raises:
            UserError: the folder is a link or lies behind one, so that the files below it are not the program's.
        """
        missing = []
        place = self.owned.folder(root)
        if place != self.owned.root / root:
            raise UserError(f"{shown(self.owned.root / root)} is a link", hint="remove the link and start again")
        tree = Owned(place, local=True)
        for name, (sha256, size) in files.items():
            if self._whole(sha256, size):
                tree.take(self.owned.root / self._place(sha256), name)
            else:
                missing.append(name)
        for path in sorted(tree.root.rglob("*")) if alone else ():
            name = path.relative_to(tree.root).as_posix()
            if name not in files and not path.is_dir():
                tree.remove(name)
        return missing

    def sweep(self) -> int:
        """Remove stored files that no tree uses. Returns the number of bytes freed."""
        freed = 0
        base = self.owned.root / STORE
        for path in sorted(base.glob("??/*")) if base.is_dir() else ():
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                self.owned.remove(path.relative_to(self.owned.root))
                freed += found.st_size
        return freed

    @staticmethod
    def _place(sha256: str) -> str:
        return f"{STORE}/{_checked(sha256)[:2]}/{sha256}"

    @staticmethod
    def _partial(sha256: str) -> str:
        return f"{PARTIAL}/{_checked(sha256)}"


def _checked(sha256: str) -> str:
    if not SHA256.fullmatch(sha256):
        raise UserError(f"{shown(sha256)} is not a hash")
    return sha256


def _seal(path: Path) -> None:
    path.chmod(stat.S_IRUSR | stat.S_IRGRP)
    os.utime(path, (SEALED, SEALED))
