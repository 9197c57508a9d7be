"""A SQLite log of a person's answers. It is append-only, and events are on disk before they are shown.

The state is the fold of all events that are not undone, so that resuming after a crash and unlimited undo
need no further machinery. SQLite runs in WAL mode with ``synchronous=FULL``: once ``append`` returns, the
event survives a power failure.
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
from typing import IO, Any, ClassVar, Self

from modules.util.errors import UserError, refused_as
from modules.util.files.Database import Database, NotPlainError
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


# full, disk error, read-only, or the file cannot be created
_OF_DISK = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


def disk_hint(folder: Path) -> str:
    """Return what to check if a folder cannot be written, with the free space on its disk."""
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
    """The log of one folder. Opening takes a lock; a second window or process gets a ``UserError``.

    Args:
        owned: the folder, as owned files; created if missing.
        folder: the same folder, as shown in messages.
    """

    FILE: ClassVar[str]
    LOCK: ClassVar[str]
    WHAT: ClassVar[str]
    """The name of the file in messages: "a store of pairs"."""
    VERSION: ClassVar[int]
    TABLES: ClassVar[str] = ""
    """Additional tables."""
    DAMAGED: ClassVar[str]
    """The remedy for a damaged file."""
    ALSO_PLAIN: ClassVar[tuple[str, ...]] = ()
    """Further names in the folder that must be plain files."""

    def __init__(self, owned: Owned, folder: Path) -> None:
        self._owned = owned
        self.output_dir = folder
        # a path of its own for each of many events takes a quarter of the time of reading them
        self._file = folder / self.FILE
        with refused_as(f"cannot create the output folder {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
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
        """Hook for further work on opening, after the type of the file was checked."""

    def _open_database(self) -> sqlite3.Connection:
        path = self.output_dir / self.FILE
        try:
            db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Database)
            db.check_plain()
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute("PRAGMA trusted_schema=OFF")
            db.executescript(_TABLES + self.TABLES)
        except sqlite3.DatabaseError as error:
            raise UserError(f"{path} cannot be opened: {error}", hint=self._hint_for(error)) from error
        return db

    def _hint_for(self, error: sqlite3.DatabaseError) -> str:
        if isinstance(error, NotPlainError) and error.hint:
            return error.hint
        of_disk = getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_DISK
        return disk_hint(self.output_dir) if of_disk else self._if_damaged()

    def _if_damaged(self) -> str:
        """Return what to do about a damaged file, given the state of the folder."""
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
        """Close the file and release the lock."""
        if self._lock.closed:
            return
        try:
            self._before_closing()
        finally:
            self._db.close()
            self._lock.close()

    def _before_closing(self) -> None:
        """Hook for writing what is still pending."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Turn a full or failing disk into one clear error."""
        try:
            yield
        except (sqlite3.DatabaseError, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(
                f"cannot save in {self.output_dir}: {reason}", hint=disk_hint(self.output_dir)
            ) from error

    def is_in_place(self) -> bool:
        """Return whether the file is still where it was opened. A folder that was moved takes it along.

        Raises:
            OSError: its disk does not answer.
        """
        return (self.output_dir / self.FILE).is_file()

    def check_in_place(self) -> None:
        """Raise ``UserError`` if the folder was moved: files written now would make a second folder in its place."""
        if not self.is_in_place():
            raise UserError(
                f"nothing was saved: the folder {shown(self.output_dir)} was moved, renamed or deleted",
                hint="put it back and try again, or close this window and open the folder where it is now",
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._saving():
            self.check_in_place()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                with announced("commit", self.output_dir / self.FILE):
                    self._db.execute("COMMIT")
            except BaseException:
                # SQLite rolls back on its own when the disk is full.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, query: str, *values: int | str) -> list[tuple[Any, ...]]:
        """The rows of a query.

        Raises:
            UserError: the file is damaged there, or unreadable.
        """
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise UserError(
                f"{self.output_dir / self.FILE} cannot be read: {error}", hint=self._hint_for(error)
            ) from error

    # --- small values ---

    def meta(self, key: str) -> str | None:
        """A stored setting."""
        rows = self._rows("SELECT value FROM meta WHERE key = ?", key)
        return str(rows[0][0]) if rows else None

    def set_meta(self, key: str, value: str) -> None:
        """Store a setting."""
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    # --- the log ---

    def append(self, group_key: str, kind: str, payload: dict[str, Any]) -> int:
        """Append one event and return its sequence number once it is on disk."""
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
        """Events of one group or of all, in order.

        Args:
            undone: return the undone events instead.
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
        where = f"{self._file}, event {seq}"
        payload = self._object(text, where)
        self._check_payload(str(kind), payload, where)
        return Event(seq, str(key), str(kind), payload, at)

    def _check_payload(self, kind: str, payload: dict[str, Any], where: str) -> None:
        """Raise ``UserError`` for a payload that this program would not have written."""

    def _object(self, text: object, where: str) -> dict[str, Any]:
        """The JSON object of a row. Raises ``UserError`` for anything else."""
        found = parse_json(text, f"payload of {where}") if isinstance(text, (str, bytes)) else None
        if not isinstance(found, dict):
            raise UserError(f"{where} is not an object", hint=self._if_damaged())
        return found

    def undo_last(
        self,
        follows: Callable[[Event], bool] = lambda event: False,
        stays: Callable[[Event], bool] = lambda event: False,
    ) -> Event | None:
        """Undo the last event together with those that followed from it, in one transaction.

        Args:
            follows: whether an event only followed from the one before it.
            stays: whether undo skips an event and leaves it unchanged.

        Returns:
            The undone event; ``None`` if there is none, or only events that followed from one.
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
        """Hook for what must change together with undone events, in the same transaction."""

    def _forgotten(self) -> None:
        """Hook called once events are undone for good."""


def peek(path: Path, query: str) -> list[tuple[Any, ...]]:
    """Rows of a log that another process may have open; empty if there is no log.

    Raises:
        UserError: the log is unreadable.
    """
    if not path.is_file():
        return []
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, factory=Database)
        ) as db:
            db.check_plain()
            return db.execute(query).fetchall()
    except sqlite3.DatabaseError as error:
        hint = getattr(error, "hint", "") or "is it damaged?"
        raise UserError(f"{path} cannot be read: {error}", hint=hint) from error


def _take_lock(path: Path) -> IO[bytes]:
    """Take an exclusive lock that ends with the process. A second window is refused."""
    handle = path.open("a+b")
    if not try_lock(handle):
        handle.close()
        raise UserError(f"the folder {path.parent} is open in another window", hint="close that one first")
    return handle
