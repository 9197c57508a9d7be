"""A SQLite database whose damage is always an error of SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Database(sqlite3.Connection):
    """For ``sqlite3.connect(..., factory=Database)``.

    Python decodes what SQLite says of a damaged file and fails where that quotes bytes that are not text, with a
    ``UnicodeDecodeError`` that says nothing of a database.
    """

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """As the connection's own.

        Raises:
            sqlite3.DatabaseError: also for damage that cannot be put into words.
        """
        with _in_words():
            return super().execute(*arguments)

    def executescript(self, *arguments: Any) -> sqlite3.Cursor:
        """As the connection's own.

        Raises:
            sqlite3.DatabaseError: also for damage that cannot be put into words.
        """
        with _in_words():
            return super().executescript(*arguments)


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise sqlite3.DatabaseError("its description of itself is damaged") from error
