"""One SQLite file for what a person answered: append-only, and on the disk before it is shown.

A state is the fold of the events that are not undone, so that resuming after a crash and undoing without limit need no
further machinery. SQLite runs in WAL mode with ``synchronous=FULL``: what ``append`` has returned survives a power cut.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

from modules.util.errors import UserError
from modules.util.files.Database import Database
from modules.util.files.locking import try_lock
from modules.util.files.OpenFolder import announced
from modules.util.jsonio import parse_json
from modules.util.owned_files import Owned, shown

_LAST = 2**63 - 1
_COLUMNS = "seq, group_key, kind, payload, time"
_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, group_key TEXT NOT NULL, kind TEXT NOT NULL,
    payload TEXT NOT NULL, time REAL NOT NULL, undone INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS events_by_group ON events (group_key, undone, seq);
"""


# full, an error of the disk, read-only, or no file can be made there
_OF_DISK = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


def disk_hint(folder: Path) -> str:
    """What to look at when a folder cannot be written, with the room that is left on its disk."""
    try:
        room = f": {shutil.disk_usage(folder).free / 1e6:.0f} MB are free there"
    except OSError:
        room = ""
    return f"is the disk of {shown(folder)} full or read-only?{room}"


@dataclass(frozen=True)
class Event:
    """One line of the log."""

    seq: int
    group_key: str
    kind: str
    payload: dict[str, Any]
    time: float


class EventLog:
    """The log of one folder. Opening takes a lock: a second window or process is refused with a ``UserError``.

    Args:
        owned: the folder, as what may be changed in it; made if missing.
        folder: the same folder, as messages name it.
    """

    FILE: ClassVar[str]
    LOCK: ClassVar[str]
    WHAT: ClassVar[str]
    """What the file is, for messages: "a store of pairs"."""
    VERSION: ClassVar[int]
    TABLES: ClassVar[str] = ""
    """Further tables."""
    DAMAGED: ClassVar[str]
    """What to do about a damaged file."""
    ALSO_PLAIN: ClassVar[tuple[str, ...]] = ()
    """Further names of the folder that must be plain files."""

    def __init__(self, owned: Owned, folder: Path) -> None:
        self._owned = owned
        self.output_dir = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot create the output folder {folder}: {error.strerror}") from error
        for name in (self.FILE, f"{self.FILE}-wal", f"{self.FILE}-shm", *self.ALSO_PLAIN):
            owned.plain_file(name)
        self._lock = _take_lock(owned.plain_file(self.LOCK))
        try:
            self._db = self._open_database()
            try:
                with self._saving():
                    self._check_schema()
                    self._prepare()
            except BaseException:
                self._db.close()
                raise
        except BaseException:
            self._lock.close()
            raise

    def _prepare(self) -> None:
        """What else opening does, once the file is known to be of the right kind."""

    def _open_database(self) -> sqlite3.Connection:
        path = self.output_dir / self.FILE
        try:
            db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Database)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute("PRAGMA trusted_schema=OFF")
            db.executescript(_TABLES + self.TABLES)
        except sqlite3.DatabaseError as error:
            raise UserError(f"{path} cannot be opened: {error}", hint=self._hint_for(error)) from error
        return db

    def _hint_for(self, error: sqlite3.DatabaseError) -> str:
        of_disk = getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_DISK
        return disk_hint(self.output_dir) if of_disk else self._if_damaged()

    def _if_damaged(self) -> str:
        """What to do about a damaged file, as things are in the folder."""
        return self.DAMAGED

    def _check_schema(self) -> None:
        version, path = self.meta("schema"), self.output_dir / self.FILE
        if version is None:
            self.set_meta("schema", str(self.VERSION))
        elif not version.isdecimal():
            raise UserError(
                f"{path} is not {self.WHAT}: its format is {shown(version)!r}", hint=self._if_damaged()
            )
        elif len(version) > 9 or int(version) > self.VERSION:
            raise UserError(f"{path} was written by a newer version of this program", hint="update it")

    def close(self) -> None:
        """Close the file and give the lock back."""
        if self._lock.closed:
            return
        try:
            self._before_closing()
        finally:
            self._db.close()
            self._lock.close()

    def _before_closing(self) -> None:
        """What is still to be written."""

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """A disk that is full or fails becomes one clear error."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise UserError(
                f"cannot save in {self.output_dir}: {error}", hint=disk_hint(self.output_dir)
            ) from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(
                f"cannot save in {self.output_dir}: {reason}", hint=disk_hint(self.output_dir)
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._saving():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                with announced("commit", self.output_dir / self.FILE):
                    self._db.execute("COMMIT")
            except BaseException:
                # A full disk makes SQLite roll back by itself.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, query: str, *values: int | str) -> list[tuple[Any, ...]]:
        """The rows of a query.

        Raises:
            UserError: the file is damaged where they are, or cannot be read.
        """
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise UserError(
                f"{self.output_dir / self.FILE} cannot be read: {error}", hint=self._hint_for(error)
            ) from error

    # --- small values ---

    def meta(self, key: str) -> str | None:
        """A remembered setting."""
        rows = self._rows("SELECT value FROM meta WHERE key = ?", key)
        return str(rows[0][0]) if rows else None

    def set_meta(self, key: str, value: str) -> None:
        """Remember a setting."""
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    # --- the log ---

    def append(self, group_key: str, kind: str, payload: dict[str, Any]) -> int:
        """Make one event durable; returns its sequence number once it is on the disk."""
        with self._transaction():
            return self._insert_event(group_key, kind, payload)

    def _insert_event(self, group_key: str, kind: str, payload: dict[str, Any]) -> int:
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False)
        cursor = self._db.execute(
            "INSERT INTO events (group_key, kind, payload, time) VALUES (?, ?, ?, ?)",
            (group_key, kind, text, time.time()),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def events(self, group_key: str | None = None, undone: bool = False, after: int = 0) -> list[Event]:
        """Events in order, of one group or of all.

        Args:
            undone: those that were taken back instead.
            after: only those with a higher sequence number.
        """
        query = f"SELECT {_COLUMNS} FROM events WHERE undone = ? AND seq > ?"
        values: list[int | str] = [int(undone), after]
        if group_key is not None:
            query += " AND group_key = ?"
            values.append(group_key)
        return [self._event(row) for row in self._rows(f"{query} ORDER BY seq", *values)]

    def _event(self, row: tuple[Any, ...]) -> Event:
        seq, key, kind, text, at = row
        where = f"{self.output_dir / self.FILE}, event {seq}"
        payload = self._object(text, where)
        self._check_payload(str(kind), payload, where)
        return Event(seq, str(key), str(kind), payload, at)

    def _check_payload(self, kind: str, payload: dict[str, Any], where: str) -> None:
        """Refuse (``UserError``) what this program would not have written."""

    def _object(self, text: object, where: str) -> dict[str, Any]:
        """The JSON object of a row. ``UserError`` if it is none."""
        found = parse_json(text, f"payload of {where}") if isinstance(text, (str, bytes)) else None
        if not isinstance(found, dict):
            raise UserError(f"{where} is not an object", hint=self._if_damaged())
        return found

    def undo_last(
        self,
        follows: Callable[[Event], bool] = lambda event: False,
        stays: Callable[[Event], bool] = lambda event: False,
    ) -> Event | None:
        """Take the last event back, together with what followed from it: all in one transaction.

        Args:
            follows: whether an event only followed from the one before it.
            stays: whether undo passes over an event, which is left as it is.

        Returns:
            The event that was taken back; ``None`` if there is none, or nothing but what followed from one.
        """
        taken: list[Event] = []
        query = f"SELECT {_COLUMNS} FROM events WHERE undone = 0 AND seq < ? ORDER BY seq DESC LIMIT 1"
        before = _LAST
        while rows := self._rows(query, before):
            event = self._event(rows[0])
            before = event.seq
            if stays(event):
                continue
            taken.append(event)
            if not follows(event):
                break
        if not taken:
            return None
        with self._transaction():
            self._db.executemany("UPDATE events SET undone = 1 WHERE seq = ?", [(e.seq,) for e in taken])
            self._forget(taken)
        self._forgotten()
        return None if follows(taken[-1]) else taken[-1]

    def _forget(self, events: Sequence[Event]) -> None:
        """What goes with events that are undone, in the same transaction."""

    def _forgotten(self) -> None:
        """What follows once they are undone for good."""


def peek(path: Path, query: str) -> list[tuple[Any, ...]]:
    """Rows of a log that somebody else may have open; none where there is no log.

    Raises:
        UserError: it cannot be read.
    """
    if not path.is_file():
        return []
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, factory=Database)
        ) as db:
            return db.execute(query).fetchall()
    except sqlite3.DatabaseError as error:
        raise UserError(f"{path} cannot be read: {error}", hint="is it damaged?") from error


def _take_lock(path: Path) -> IO[bytes]:
    """An exclusive lock that dies with the process; a second window is refused."""
    handle = path.open("a+b")
    if not try_lock(handle):
        handle.close()
        raise UserError(f"the folder {path.parent} is open in another window", hint="close that one first")
    return handle
