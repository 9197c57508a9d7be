"""A child process that reads parquet files, because Arrow crashes its process on some damaged files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modules.curation.exchange.parquet_rows import BAD, END, FRAME, IMAGES, OBJECT, REFUSED
from modules.util.errors import DataError
from modules.util.program_files import ROOT

_COMMAND = (sys.executable, "-m", "modules.curation.exchange.parquet_rows")
_idle: list[subprocess.Popen[bytes]] = []
"""Idle child processes. They end with this process, when their input closes."""


def parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, row) for each row of a file of Pick-a-Pic.

    A row has ``caption`` (text), ``label_0`` (a number), ``jpg_0`` and ``jpg_1`` (bytes), each ``None`` if it
    is of another type or too large. An unreadable row has only ``fault`` with the reason.

    Raises:
        DataError: the file is unreadable, or unpacks to far more than its size.
    """
    child, sound = _idle.pop() if _idle else _started(), False
    try:
        _send(child, path)
        number = 0
        while (frame := _frame(child))[0] not in (END, REFUSED):
            number += 1
            yield f"{path}, row {number}", _row(*frame)
        sound = True
    except (EOFError, BrokenPipeError) as error:
        raise _ended(child, path) from error
    finally:
        # after an incomplete answer, the next file would get the rest of this one
        if sound:
            _idle.append(child)
        else:
            child.kill()
            child.communicate()
    if frame[0] == REFUSED:
        said = json.loads(frame[1])
        raise DataError(said["message"], hint=said["hint"])


def _started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)


def _ended(child: subprocess.Popen[bytes], path: Path) -> Exception:
    code = child.wait()
    if code == 1:
        return RuntimeError(f"the reader of parquet files failed at {path}; its traceback is above")
    return DataError(
        f"{path} cannot be read as parquet: it is damaged in a way that ended its reader (code {code})",
        hint="download the file again from a source you trust",
    )


def _send(child: subprocess.Popen[bytes], path: Path) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps(str(path.absolute())).encode() + b"\n")
    child.stdin.flush()


def _frame(child: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    kind, length = FRAME.unpack(_exactly(child, FRAME.size))
    return kind, _exactly(child, length)


def _exactly(child: subprocess.Popen[bytes], count: int) -> bytes:
    """Read exactly ``count`` bytes.

    Raises:
        EOFError: the child ended early.
    """
    assert child.stdout is not None
    data = child.stdout.read(count)
    if len(data) < count:
        raise EOFError
    return data


def _row(kind: bytes, payload: bytes) -> dict[str, Any]:
    if kind == BAD:
        return {"fault": payload.decode()}
    start = OBJECT.size + OBJECT.unpack_from(payload)[0]
    row: dict[str, Any] = json.loads(payload[OBJECT.size : start])
    for name, size in zip(IMAGES, row.pop("sizes"), strict=True):
        row[name] = None if size is None else payload[start : start + size]
        start += size or 0
    return row
