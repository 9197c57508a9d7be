"""A SQLite database that reports any damage as a SQLite error."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Database(sqlite3.Connection):
    """For ``sqlite3.connect(..., factory=Database)``.

    Python decodes SQLite's messages. For a damaged file, these may quote bytes that are not text, and Python
    then raises a ``UnicodeDecodeError`` that does not mention a database.
    """

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
