"""The files of a sample grid: one per cell, named by everything that determines its pixels, and the sheet."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from modules.trainer.evaluate.grid_axes import Axis, Cell, cells_of
from modules.trainer.evaluate.grid_sheet import draw_sheet
from modules.util.config.SampleConfig import READING, SampleConfig
from modules.util.jsonio import write_bytes
from modules.util.pairs.decoding import IMAGE_ERRORS
from modules.util.pairs.dpo_pair_files import file_sha256
from modules.util.pairs.source_files import further_sources

FORMAT = 1
CELLS = "cells"
LETTERS = 12
_NEWER = ("base_image_path", "mask_image_path", "force_last_timestep", *READING)
"""Settings of samples that are left out while they have their default. Cells of versions without them stay known."""
_UNSAFE = re.compile(r"[^\w ,.()-]+")


@dataclass(frozen=True)
class GridCell:
    """A cell and its file.

    Args:
        label: label of its column and row.
        digest: identifies its settings and files.
    """

    cell: Cell
    label: str
    digest: str
    path: Path


class SampleGrid:
    """A grid that is made cell by cell. Existing cells are not made again.

    Args:
        base: the cell that the axes vary.
        x: horizontal axis, if any.
        y: vertical axis, if any.
        folder: folder of the sheet; the cells are in its subfolder ``cells``.
        settings: everything else that determines pixels, as plain data.
        files: files or folders of the model, identified by size and modification time.

    Raises:
        ConfigError: the axes cannot be combined.
    """

    def __init__(
        self, base: Cell, x: Axis | None, y: Axis | None, folder: Path, settings: Mapping[str, Any],
        files: Sequence[Path],
    ) -> None:  # fmt: skip
        self._across = [value.label for value in x.values] if x is not None else [""]
        self._down = [value.label for value in y.values] if y is not None else [""]
        self._folder = folder
        self._digests: dict[Path, str] = {}
        common = {"format": FORMAT, **settings, "files": [_state(path) for path in files]}
        self.rows: list[list[GridCell]] = []
        for side, row in zip(self._down, cells_of(base, x, y), strict=True):
            labels = [", ".join(filter(None, (head, side))) for head in self._across]
            pairs = zip(labels, row, strict=True)
            self.rows.append([self._placed(cell, label, common) for label, cell in pairs])

    def _placed(self, cell: Cell, label: str, common: Mapping[str, Any]) -> GridCell:
        chosen = [(self._digest(path), strength) for path, strength in cell.chosen() if strength != 0.0]
        source = cell.sample.source_path
        sources = [self._digest(path) for path in further_sources(Path(source))] if source else []
        painted = (cell.sample.base_image_path, cell.sample.mask_image_path)
        sources += [self._digest(Path(path)) for path in painted if path]
        usual = SampleConfig().to_dict()
        given = {n: v for n, v in cell.sample.to_dict().items() if n not in _NEWER or v != usual[n]}
        facts = {**common, "sample": given, "adapters": chosen, "sources": sources}
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:LETTERS]
        name = _UNSAFE.sub("", label)[:60].strip(" .")
        return GridCell(cell, label, digest, self._folder / CELLS / f"{name} {digest}.png".strip())

    def _digest(self, path: Path) -> str:
        if path not in self._digests:
            self._digests[path] = file_sha256(path)
        return self._digests[path]

    def _found(self) -> dict[str, Path]:
        """The existing cells, by digest, whatever their names."""
        place = self._folder / CELLS
        files = sorted(place.iterdir()) if place.is_dir() else []
        found = {}
        wanted = {one.digest for one in self._all()}
        for file in files:
            digest = file.stem.rpartition(" ")[2]
            if file.suffix == ".png" and digest in wanted and _whole(file):
                found[digest] = file
        return found

    def _all(self) -> Iterator[GridCell]:
        return (one for row in self.rows for one in row)

    def missing(self) -> list[GridCell]:
        """The cells still to be made, grouped by adapters."""
        found = self._found()
        todo: dict[str, GridCell] = {}
        for one in self._all():
            if one.digest not in found:
                todo.setdefault(one.digest, one)
        return sorted(todo.values(), key=lambda one: str(one.cell.chosen()))

    def total(self) -> int:
        """Number of different images in the grid."""
        return len({one.digest for one in self._all()})

    def write_sheet(self) -> Path:
        """Draw the sheet from the cells, all of which exist. Returns its file."""
        found = self._found()
        images = [[found[one.digest] for one in row] for row in self.rows]
        key = json.dumps([[one.digest for one in row] for row in self.rows] + [self._across, self._down])
        target = self._folder / f"grid-{hashlib.sha256(key.encode()).hexdigest()[:LETTERS]}.png"
        write_bytes(target, draw_sheet(images, self._across, self._down))
        return target


def _whole(path: Path) -> bool:
    try:
        with Image.open(path) as image:
            image.load()
    except IMAGE_ERRORS:
        return False
    return True


def _state(path: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and modification times of a model's files; empty for a hub name."""
    files: Iterable[Path] = [path] if path.is_file() else []
    if path.is_dir():
        files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    states = [(file, file.stat()) for file in files]
    return sorted((str(file), about.st_size, about.st_mtime_ns) for file, about in states)
