"""A table of known facts in an SQLite file. Losing it costs time, never correctness."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from modules.util.errors import UserError
from modules.util.files.Database import Database
from modules.util.owned_files import Owned

_log = logging.getLogger(__name__)
Row = tuple[Any, ...]


class FactsFile:
    """Rows of one table.

    Args:
        path: the file; ``None`` stores nothing. A damaged file is replaced by an empty one, and one that is
            not writable is no longer used, both with a warning.
        what: its name in warnings.
        table: its name, which changes with the version of the format.
        columns: names with types; the first ``key`` of them are the key.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        what: str,
        table: str,
        columns: Sequence[str],
        key: int = 1,
    ) -> None:
        self._path = None if path is None else Path(path)
        self._what, self._table, self._columns, self._key = what, table, tuple(columns), key
        self._names = ", ".join(column.partition(" ")[0] for column in columns)

    def read(self, keep: Callable[[Row], None], condition: str = "", *values: object) -> bool:
        """Read all rows that meet a condition. Returns whether that succeeded, also without a file or table.

        Args:
            keep: called with each row. The rows must be discarded if the file turns out to be damaged.
            condition: in SQL, with ``?`` for each of the values.
        """
        if self._path is None or not self._path.is_file():
            return True
        where = f" WHERE {condition}" if condition else ""
        try:
            with closing(sqlite3.connect(self._path, timeout=30, factory=Database)) as connection:
                connection.check_plain()
                known = "SELECT 1 FROM sqlite_master WHERE name = ?"
                # a file of an earlier version has another table with fewer facts
                if connection.execute(known, (self._table,)).fetchone():
                    self._check_types(connection)
                    found = f"SELECT {self._names} FROM {self._table}{where}"
                    for row in connection.execute(found, values):
                        keep(row)
        except (sqlite3.Error, ValueError, TypeError) as error:
            self._set_aside(error)
            return False
        return True

    def _check_types(self, connection: sqlite3.Connection) -> None:
        """Raise ``TypeError`` if a value has another type than its column: SQLite stores any value in any column."""
        wrong = " OR ".join(
            f"typeof({name}) != '{kind.lower()}'" for name, _, kind in (one.partition(" ") for one in self._columns)
        )
        if connection.execute(f"SELECT 1 FROM {self._table} WHERE {wrong} LIMIT 1").fetchone():
            raise TypeError("a value in it has a wrong type")

    def _set_aside(self, reason: object) -> None:
        """Start again with an empty file."""
        assert self._path is not None
        _log.warning("the %s %s is damaged and is made again (%s)", self._what, self._path, reason)
        try:
            Owned(self._path.parent, local=True).remove(self._path.name)
        except (OSError, UserError):
            self._path = None

    def write(self, rows: Iterable[Row]) -> None:
        """Add rows, replacing rows with the same key."""
        rows = list(rows)
        if not rows or self._path is None:
            return
        key = ", ".join(self._names.split(", ")[: self._key])
        schema = f"CREATE TABLE IF NOT EXISTS {self._table} ({', '.join(self._columns)}, PRIMARY KEY ({key}))"
        places = ",".join("?" * len(self._columns))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=30, factory=Database)) as connection, connection:
                connection.check_plain()
                connection.execute(schema)
                connection.executemany(
                    f"INSERT OR REPLACE INTO {self._table} ({self._names}) VALUES ({places})", rows
                )
        except (sqlite3.Error, OSError) as error:
            _log.warning("the %s %s cannot be written (%s)", self._what, self._path, error)
            self._path = None
