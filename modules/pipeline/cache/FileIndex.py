"""An index of facts about image files: content hash, size, whether they decode.

A row is valid as long as path, length, inode and the times of the last modification and change are the same,
so that a second start reads no image. The change time is set by the file system; programs that reset the
modification time cannot set it.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

from modules.pipeline.cache.FactsFile import FactsFile, Row
from modules.pipeline.nodes.images import EDITION_ENDINGS, load_rgb, read_size, reading_edition
from modules.util.errors import DataError

_COLUMNS = (
    "path TEXT", "length INTEGER", "mtime_ns INTEGER", "ctime_ns INTEGER", "inode INTEGER", "checked_ns INTEGER",
    "width INTEGER", "height INTEGER", "digest TEXT", "decodes INTEGER",
)  # fmt: skip
_EDITION_COLUMNS = ("path TEXT", "digest TEXT", "edition TEXT")
# a file changed twice within the clock resolution of its file system looks unchanged, so only older files
# are trusted
_RACY_NS = 2_000_000_000


@dataclass(slots=True)
class _Row:
    length: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    checked_ns: int
    width: int = 0
    height: int = 0
    digest: str = ""
    decodes: bool = False

    def describes(self, stat: os.stat_result) -> bool:
        return self.identity == _identity(stat) and self.mtime_ns < self.checked_ns - _RACY_NS

    @property
    def identity(self) -> tuple[int, int, int, int]:
        return self.length, self.mtime_ns, self.ctime_ns, self.inode


def _identity(stat: os.stat_result) -> tuple[int, int, int, int]:
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, _inode(stat)


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)  # noqa: PTH116
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def _inode(stat: os.stat_result) -> int:
    # SQLite's integers are signed
    return stat.st_ino & 0x7FFF_FFFF_FFFF_FFFF


class FileIndex:
    """Facts about image files. Thread-safe.

    Args:
        path: the SQLite file; ``None`` keeps everything in memory. A damaged file is replaced by an empty
            one; one that is not writable is used in memory only, both with a warning.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._file = FactsFile(path, "file index", "facts", _COLUMNS)
        self._rows: dict[str, _Row] = {}
        self._fresh: set[str] = set()
        self._seen: dict[str, _Row] = {}
        self._editions_file = FactsFile(path, "file index", "editions", _EDITION_COLUMNS)
        self._editions: dict[str, tuple[str, str]] = {}
        """Digest of a file, and the way in which it is read, by path."""
        self._fresh_editions: set[str] = set()
        self._lock = threading.Lock()
        if not self._file.read(self._keep):
            self._rows.clear()
        if not self._editions_file.read(self._keep_edition):
            self._editions.clear()

    def _keep(self, row: Row) -> None:
        self._rows[row[0]] = _Row(*row[1:])

    def _keep_edition(self, row: Row) -> None:
        path, digest, edition = row
        self._editions[path] = digest, edition

    def flush(self) -> None:
        """Write new facts to the file."""
        with self._lock:
            fresh, self._fresh = self._fresh, set()
            rows = [(path, *_values(self._rows[path])) for path in sorted(fresh)]
            opened, self._fresh_editions = self._fresh_editions, set()
            editions = [(path, *self._editions[path]) for path in sorted(opened)]
        self._file.write(rows)
        self._editions_file.write(editions)

    def _row(self, path: str) -> _Row:
        """The valid row of a file, or a new empty one. This object checks each file once."""
        # called several times per item of a run, so the dictionary is read without a lock
        known = self._seen.get(path)
        if known is not None:
            return known
        stat = _stat(path)
        if not S_ISREG(stat.st_mode):
            raise DataError(f"{path}: is not a file")
        with self._lock:
            row = self._rows.get(path)
            if path not in self._seen and (row is None or not row.describes(stat)):
                row = _Row(*_identity(stat), time.time_ns())
                self._rows[path] = row
                self._fresh.add(path)
            return self._seen.setdefault(path, self._rows[path])

    def check_unchanged(self, path: str) -> None:
        """Raise ``DataError`` if the file has changed since it was checked.

        A file with the same bytes is unchanged: hard links, which backups and other runs make, have a new time of
        change too.
        """
        row = self._row(path)
        stat = _stat(path)
        if row.identity == _identity(stat):
            return
        if not row.digest or row.length != stat.st_size or file_digest(path) != row.digest:
            raise DataError(f"{path}: the file was changed while it was being read", hint="start again")
        with self._lock:
            row.length, row.mtime_ns, row.ctime_ns, row.inode = _identity(stat)
            self._fresh.add(path)

    def size(self, path: str) -> tuple[int, int]:
        """(width, height) of an image as displayed.

        Raises:
            DataError: it is not a readable image.
        """
        row = self._row(path)
        if not row.width:
            width, height = read_size(path)
            with self._lock:
                row.width, row.height = width, height
                self._fresh.add(path)
        return row.width, row.height

    def digest(self, path: str) -> str:
        """Hex digest of the file's bytes.

        Raises:
            DataError: it is unreadable.
        """
        row = self._row(path)
        if not row.digest:
            digest = file_digest(path)
            with self._lock:
                row.digest = digest
                self._fresh.add(path)
        return row.digest

    def content(self, path: str) -> str:
        """The digest of a file, and the way in which it is read if that has changed: for keys of what is made from it.

        Raises:
            DataError: it is unreadable.
        """
        digest = self.digest(path)
        if not path.lower().endswith(EDITION_ENDINGS):
            return digest
        known, edition = self._editions.get(path, ("", ""))
        if known != digest:
            edition = reading_edition(path)
            with self._lock:
                self._editions[path] = digest, edition
                self._fresh_editions.add(path)
        return digest + edition

    def without_digest(self, paths: Iterable[str]) -> list[str]:
        """The paths, without duplicates, whose files must be read to get their digest."""
        unique = dict.fromkeys(paths)
        return [path for path in unique if (row := self._seen.get(path)) is None or not row.digest]

    def same_content(self, path: str, other: str) -> bool:
        """Return whether two files hold the same bytes. They are read only if their lengths are equal."""
        return self._row(path).length == self._row(other).length and self.digest(path) == self.digest(other)

    def check_decodes(self, path: str) -> None:
        """Check that the image decodes, once per content.

        Raises:
            DataError: it is damaged.
        """
        row = self._row(path)
        if not row.decodes:
            load_rgb(path)
            with self._lock:
                row.decodes = True
                self._fresh.add(path)


def _values(row: _Row) -> tuple[int | str, ...]:
    size = (row.width, row.height)
    return (*row.identity, row.checked_ns, *size, row.digest, int(row.decodes))


def file_digest(path: str | os.PathLike[str]) -> str:
    """blake2b of a file's bytes, 16 bytes as hex. Raises ``DataError`` if it is unreadable."""
    try:
        with Path(path).open("rb") as stream:
            return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
