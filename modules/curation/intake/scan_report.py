"""The metadata of every image file in a folder, as rows for a list."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from modules.curation.intake.edit_sources import NO_EDITS, EditOptions, SourceFinder
from modules.curation.intake.groups import key_of
from modules.curation.intake.scan import ScanFault, walk_images
from modules.util.display import counted
from modules.util.image_metadata.limits import Reason, Unusable
from modules.util.image_metadata_util import read_metadata
from modules.util.pairs.source_files import SourceImage

Row = dict[str, Any]
_PROGRESS_ROWS = 200


def scan_rows(
    root: Path, recursive: bool = True, stealth: bool = False, edits: EditOptions = NO_EDITS
) -> Iterator[Row]:
    """Yield one row for each image file, in natural order, and for each unusable file or folder.

    Keys: ``path`` (relative, with ``/``), ``prompt`` and ``negative_prompt`` as written by the generator,
    ``width`` and ``height`` in pixels as stored (``None`` if unknown), ``generator``, ``seed``, ``sources``
    (source images of edits), ``group`` (the same for images of one prompt, shape and sources) and ``error``
    (why there is no group; ``None`` if there is one).

    Args:
        stealth: look for text hidden in the pixels if there is no other; slow.
        edits: which images are edits, and where their sources are.

    Raises:
        UserError: ``root`` is unreadable.
    """
    finder = SourceFinder(root, edits)
    for found in walk_images(root, finder.folders(), recursive):
        if isinstance(found, ScanFault):
            yield _row(_printable(os.path.relpath(found.path, root)), error=found.reason)
            continue
        if finder.is_source(found.name):
            continue
        about = read_metadata(found.path, known_regular=found.regular, stealth=stealth)
        group, error = None, about.error
        sources: tuple[SourceImage, ...] = ()
        if about.prompt is not None:
            try:
                sources = finder.find(found.name, about)
                group = key_of(about, sources)
            except Unusable as fault:
                error = str(fault)
        yield _row(
            found.name,
            prompt=about.prompt,
            negative_prompt=about.negative_prompt,
            width=about.width or None,
            height=about.height or None,
            generator=about.generator,
            seed=about.seed,
            sources=[str(source.path) for source in sources],
            group=group,
            error=error,
        )


def _row(path: str, **values: Any) -> Row:
    unknown = dict.fromkeys(("prompt", "negative_prompt", "width", "height", "generator", "seed"))
    return {"path": path, **unknown, "sources": [], "group": None, "error": None, **values}


def _printable(path: str) -> str:
    """A path as text that any file takes: bytes that are not UTF-8 become ``\\xNN``."""
    return os.fsencode(path.replace(os.sep, "/")).decode("utf-8", "backslashreplace")


@dataclass
class ScanCount:
    """Totals over the rows of a scan."""

    files: int = 0
    with_prompt: int = 0
    without_source: int = 0
    groups: set[str] = field(default_factory=set)

    def add(self, row: Row) -> None:
        """Count one row."""
        self.files += 1
        self.with_prompt += row["prompt"] is not None
        self.without_source += str(row["error"]).startswith(Reason.NO_SOURCE.value)
        if row["group"] is not None:
            self.groups.add(row["group"])

    def __str__(self) -> str:
        without = self.files - self.with_prompt
        edits = f", {counted(self.without_source, 'edit')} without source" if self.without_source else ""
        files, groups = counted(self.files, "file"), counted(len(self.groups), "group")
        return f"{files}, {groups}, {counted(without, 'file')} without a prompt{edits}"


def write_rows(rows: Iterable[Row], stream: IO[str], progress: Callable[[str], None]) -> ScanCount:
    """Write rows as one JSON list as they arrive, so that memory does not grow with the folder.

    All characters are ASCII, so that a pipe of any encoding delivers the same values.
    """
    count = ScanCount()
    separator = "[\n"
    for row in rows:
        count.add(row)
        stream.write(separator + json.dumps(row, allow_nan=False))
        separator = ",\n"
        if count.files % _PROGRESS_ROWS == 0:
            progress(str(count))
    stream.write("\n]\n" if count.files else "[]\n")
    return count
