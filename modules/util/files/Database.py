"""A SQLite database that reports any damage as a SQLite error, and can be asked whether it holds only data."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ANYTHING_ELSE = """
SELECT one.name, one.type FROM sqlite_master AS one
WHERE one.sql NOT LIKE 'CREATE TABLE %' AND one.sql NOT LIKE 'CREATE INDEX %'
AND one.sql NOT LIKE 'CREATE UNIQUE INDEX %'
OR EXISTS (SELECT 1 FROM pragma_table_xinfo(one.name) WHERE hidden != 0) LIMIT 1
"""


class NotPlainError(sqlite3.DatabaseError):
    """A database holds something that computes. ``hint`` says what to do about it, and keeps all data."""

    def __init__(self, name: str, kind: str) -> None:
        shown = ascii(name)[:60]
        super().__init__(f"it holds more than tables of data: {shown}")
        # a virtual or computed table may hold data of the program
        self.hint = (
            f"in a program that edits SQLite databases, delete the {kind} {shown}: no data is in it"
            if kind in ("view", "trigger")
            else ""
        )


class Database(sqlite3.Connection):
    """For ``sqlite3.connect(..., factory=Database)``.

    Python decodes SQLite's messages. For a damaged file, these may quote bytes that are not text, and Python
    then raises a ``UnicodeDecodeError`` that does not mention a database.
    """

    def check_plain(self) -> None:
        """Check that nothing in a file from elsewhere computes anything: a view can have endless rows, a trigger can
        delete what is saved, and a computed column can fill the memory.

        Raises:
            NotPlainError: it holds something other than tables and indices.
            sqlite3.DatabaseError: it is damaged.
        """
        found = self.execute(_ANYTHING_ELSE).fetchone()
        if found:
            raise NotPlainError(*map(str, found))

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """As in ``sqlite3.Connection``.

        Raises:
            sqlite3.DatabaseError: also for damage whose message cannot be decoded.
        """
        with _in_words():
            return super().execute(*arguments)

    def executescript(self, *arguments: Any) -> sqlite3.Cursor:
        """As in ``sqlite3.Connection``.

        Raises:
            sqlite3.DatabaseError: also for damage whose message cannot be decoded.
        """
        with _in_words():
            return super().executescript(*arguments)


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise sqlite3.DatabaseError("its description of itself is damaged") from error
