"""Atomic file writing, which leaves either the old file or the new one, and reading of untrusted JSON."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from modules.util.errors import UserError
from modules.util.files.OpenFolder import read_plain
from modules.util.owned_files import Owned, fault_of_path, shown

_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
MAX_JSON_BYTES = 256 * 1024 * 1024


@contextmanager
def atomic_path(path: str | os.PathLike[str], replace: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to ``path``. On success, that file is flushed to disk and replaces
    ``path``.

    If the block raises, the temporary file is removed and ``path`` is unchanged. The path must come from a
    person on this computer, or be derived from such a path. Names from untrusted files go through ``Owned``.

    Args:
        replace: whether to replace an existing file. Otherwise whatever has the name stays, and the finished file gets
            another name, which the error tells.

    Raises:
        UserError: the path is impossible, is a folder or a device, or is taken.
    """
    target = Path(path)
    with Owned(target.parent, local=True).write(target.name, replace=replace) as temporary:
        yield temporary


def write_bytes(path: str | os.PathLike[str], data: bytes, replace: bool = True) -> None:
    """Write ``data`` atomically; ``replace`` as for ``atomic_path``."""
    with atomic_path(path, replace) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    r"""Write ``text`` as UTF-8, atomically, with ``\n`` line endings."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | os.PathLike[str], data: Any, indent: int | None = 2) -> None:
    """Write ``data`` as JSON, atomically. NaN and infinity are refused (``ValueError``)."""
    write_text(path, json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | os.PathLike[str], what: str = "file", max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Read an untrusted JSON file.

    Args:
        what: what errors call it ("config", "concept list").
        max_bytes: larger files are refused unread.

    Raises:
        UserError: the file is missing, unreadable, too large, not UTF-8, not JSON, or nested too deeply.
    """
    return parse_json(read_bytes(path, what, max_bytes), f"{what} {shown(path)}")


def read_bytes(path: str | os.PathLike[str], what: str = "file", max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """Read an untrusted file completely.

    Raises:
        UserError: the file is missing, unreadable, not a plain file, larger than ``max_bytes``, or its path
            is invalid.
    """
    fault = fault_of_path(path)
    if fault:
        raise UserError(f"the path of the {what}, {shown(path)}, {fault}", hint="check the path")
    try:
        data = read_plain(path, max_bytes + 1)
    except FileNotFoundError:
        raise UserError(f"the {what} {shown(path)} does not exist", hint="check the path") from None
    except OSError as error:
        raise UserError(f"the {what} {shown(path)} cannot be read: {error.strerror}") from error
    if len(data) > max_bytes:
        raise UserError(f"the {what} {shown(path)} is larger than {max_bytes} bytes")
    return data


def parse_json(data: bytes | str, what: str) -> Any:
    """Parse JSON bytes or text. Every defect is a ``UserError`` with ``what`` and the location.

    A duplicate name in an object is a defect, because programs differ in which value they use.
    """
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
        found = json.loads(text, object_pairs_hook=_object)
        if _HALF.search(text):
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except _NameTwice as error:
        raise UserError(
            f"the {what} is ambiguous: an object in it has the name {error} twice", hint="remove one of them"
        ) from None
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start : error.start + 1])
        raise UserError(
            f"the {what} holds an incomplete character, {half}, in a text or a name", hint="remove it"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"the {what} is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise UserError(
            f"the {what} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    except RecursionError:
        raise UserError(f"the {what} is nested too deeply") from None
    except ValueError as error:
        raise UserError(f"the {what} is not valid JSON: {error}") from error


class _NameTwice(Exception):
    """An object has two values with the same name."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = dict(pairs)
    if len(made) != len(pairs):
        names = Counter(name for name, _ in pairs)
        raise _NameTwice(ascii(names.most_common(1)[0][0][:60]))
    return made
