"""Sends rows of Pick-a-Pic's parquet files to the process that requests them.

This module is a program of its own, started by ``parquet_child``. On some damaged footers, Arrow ends the
whole process (by a C++ exception that Python cannot catch), and the window must not end with it.

A request is a line with the absolute path of the file as JSON text. The answer consists of frames: one byte
for the type, eight for the length of the content. ``ROW``: four bytes for the length of a JSON object, the
object, then the bytes of the images. ``BAD``: why a row is unreadable. ``REFUSED``: JSON of message and hint
for the whole file. ``END``.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from modules.curation.exchange.parquet_pages import unpacked_bytes
from modules.util.errors import DataError, UserError

FRAME, OBJECT = struct.Struct(">cQ"), struct.Struct(">I")
ROW, BAD, REFUSED, END = b"r", b"b", b"f", b"e"
IMAGES = ("jpg_0", "jpg_1")
COLUMNS = ("caption", *IMAGES, "label_0")
MAX_IMAGE_BYTES = 64 << 20
_ROWS_AT_ONCE = 4
_UNPACKED_BYTES = 16 << 20
_UNPACKED_TIMES = 20


def _frames(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield rows one by one, so that an unreadable value affects only its own row."""
    import pyarrow.parquet as parquet
    from pyarrow import ArrowException

    try:
        file = parquet.ParquetFile(path)
        missing = [name for name in COLUMNS if name not in file.schema_arrow.names]
        if missing:
            raise DataError(f"{path} has no column {', '.join(missing)}", hint="is it Pick-a-Pic?")
        _check_footer(path, file.metadata)
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=list(COLUMNS)):
            for at in range(batch.num_rows):
                yield _row({name: batch.column(name)[at] for name in COLUMNS})
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as parquet: {error}") from error


def _row(cells: dict[str, Any]) -> tuple[bytes, bytes]:
    """The frame of a row. Unusable values (an image that is too large, a label that is text) become ``None``."""
    try:
        values = {name: cell.as_py() for name, cell in cells.items()}
    except ValueError as error:
        return BAD, str(error).encode("utf-8", "replace")
    images = [values[name] for name in IMAGES]
    images = [one if isinstance(one, bytes) and len(one) <= MAX_IMAGE_BYTES else None for one in images]
    label, caption = values["label_0"], values["caption"]
    head = {
        "caption": caption if isinstance(caption, str) else None,
        "label_0": label if isinstance(label, (int, float)) else None,
        "sizes": [None if one is None else len(one) for one in images],
    }
    text = json.dumps(head).encode()
    return ROW, b"".join((OBJECT.pack(len(text)), text, *(one or b"" for one in images)))


def _check_footer(path: Path, footer: Any) -> None:
    """Refuse columns that unpack to far more than their size. Images are already compressed, captions are
    small.

    The sizes in the footer are checked first, then those in the pages, because a footer can lie.
    """
    columns = [
        footer.row_group(group).column(at)
        for group in range(footer.num_row_groups)
        for at in range(footer.num_columns)
    ]
    for column in columns:
        _check_unpacked(path, column, column.total_uncompressed_size)
    with path.open("rb") as stream:
        for column in columns:
            _check_unpacked(path, column, unpacked_bytes(stream, column))


def _check_unpacked(path: Path, column: Any, unpacked: int) -> None:
    packed = column.total_compressed_size
    if unpacked > max(_UNPACKED_BYTES, _UNPACKED_TIMES * packed):
        raise DataError(
            f"{path}: column {column.path_in_schema!r} would unpack from {packed} to {unpacked} bytes",
            hint="this is not preference data; import a file of a source you trust",
        )


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    for line in requests:
        try:
            for kind, payload in _frames(Path(json.loads(line))):
                answers.write(FRAME.pack(kind, len(payload)) + payload)
            kind, payload = END, b""
        except UserError as error:
            kind, payload = REFUSED, json.dumps({"message": error.message, "hint": error.hint}).encode()
        answers.write(FRAME.pack(kind, len(payload)) + payload)
        answers.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
