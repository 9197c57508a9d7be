"""Files that are either the old one or the new one, never half of either; and JSON from untrusted hands."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from modules.util.errors import UserError

MAX_JSON_BYTES = 256 * 1024 * 1024


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it is fsynced and renamed over ``path``.

    If the block raises, the temporary file is removed and ``path`` is left as it was.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        fsync_path(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
        fsync_path(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def fsync_path(path: str | os.PathLike[str]) -> None:
    """Flush a file or (where the platform can) a folder to the disk."""
    if os.name == "nt" and Path(path).is_dir():
        return
    flags = os.O_RDONLY if Path(path).is_dir() else os.O_RDWR
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write ``data`` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` as UTF-8, atomically, with ``\\n`` line ends."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | os.PathLike[str], data: Any, indent: int | None = 2) -> None:
    """Write ``data`` as JSON, atomically. NaN and infinity are refused (``ValueError``)."""
    write_text(path, json.dumps(data, indent=indent, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | os.PathLike[str], what: str = "file", max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Read a JSON file written by anybody.

    Args:
        path: the file.
        what: how to call it in an error ("config", "concept list").
        max_bytes: larger files are refused unread.

    Raises:
        UserError: missing, unreadable, too large, not UTF-8, not JSON, or nested too deeply.
    """
    source = Path(path)
    try:
        with source.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except FileNotFoundError:
        raise UserError(f"the {what} {source} does not exist", hint="check the path") from None
    except OSError as error:
        raise UserError(f"the {what} {source} cannot be read: {error.strerror}") from error
    if len(data) > max_bytes:
        raise UserError(f"the {what} {source} is larger than {max_bytes} bytes")
    return parse_json(data, f"{what} {source}")


def parse_json(data: bytes | str, what: str) -> Any:
    """Parse JSON bytes or text; every defect is a ``UserError`` naming ``what`` and the place."""
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
        return json.loads(text)
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
