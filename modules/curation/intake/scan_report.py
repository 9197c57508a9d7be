"""What every image file of a folder says of itself, as rows for a list."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from modules.curation.intake.groups import key_of
from modules.curation.intake.scan import ScanFault, walk_images
from modules.util.image_metadata_util import read_metadata

Row = dict[str, Any]
_PROGRESS_ROWS = 200


def scan_rows(root: Path, recursive: bool = True, stealth: bool = False) -> Iterator[Row]:
    """One row for each image file, in natural order, and for each file or folder that cannot be used.

    Keys: ``path`` (relative, with ``/``), ``prompt`` and ``negative_prompt`` as the generator wrote them,
    ``width`` and ``height`` in pixels as stored (``None`` if unknown), ``generator``, ``seed``, ``group`` (the
    same for images of one prompt and shape) and ``error`` (why there is no prompt; ``None`` if there is one).

    Args:
        root: the folder.
        recursive: go into folders.
        stealth: look for text hidden in the pixels where there is no other; slow.

    Raises:
        UserError: ``root`` cannot be read.
    """
    for found in walk_images(root, (), recursive):
        if isinstance(found, ScanFault):
            yield _row(_printable(os.path.relpath(found.path, root)), error=found.reason)
            continue
        about = read_metadata(found.path, known_regular=found.regular, stealth=stealth)
        yield _row(
            found.name,
            prompt=about.prompt,
            negative_prompt=about.negative_prompt,
            width=about.width or None,
            height=about.height or None,
            generator=about.generator,
            seed=about.seed,
            group=None if about.prompt is None else key_of(about),
            error=about.error,
        )


def _row(path: str, **values: Any) -> Row:
    names = ("prompt", "negative_prompt", "width", "height", "generator", "seed", "group", "error")
    return {"path": path, **{name: values.get(name) for name in names}}


def _printable(path: str) -> str:
    """A path as text that any file takes: bytes that are not UTF-8 become ``\\xNN``."""
    return os.fsencode(path.replace(os.sep, "/")).decode("utf-8", "backslashreplace")


@dataclass
class ScanCount:
    """Sums over the rows of a scan."""

    files: int = 0
    with_prompt: int = 0
    groups: set[str] = field(default_factory=set)

    def add(self, row: Row) -> None:
        """Count one more row."""
        self.files += 1
        self.with_prompt += row["prompt"] is not None
        if row["group"] is not None:
            self.groups.add(row["group"])

    def __str__(self) -> str:
        without = self.files - self.with_prompt
        return f"{self.files} files, {len(self.groups)} groups, {without} files without a prompt"


def write_rows(rows: Iterable[Row], stream: IO[str], progress: Callable[[str], None]) -> ScanCount:
    """Write rows as one JSON list, each as it comes, so that memory does not grow with the folder."""
    count = ScanCount()
    separator = "[\n"
    for row in rows:
        count.add(row)
        stream.write(separator + json.dumps(row, ensure_ascii=False, allow_nan=False))
        separator = ",\n"
        if count.files % _PROGRESS_ROWS == 0:
            progress(str(count))
    stream.write("\n]\n" if count.files else "[]\n")
    return count
