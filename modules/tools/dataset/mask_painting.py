"""Masks painted by a person: strokes, fills, undo. No window here."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy
from PIL import Image

from modules.tools.dataset.files import DataImage
from modules.tools.dataset.masking import (
    WHITE_LEVEL,
    fitting,
    is_there,
    mask_name,
    opened_image,
    opened_mask,
    save_mask,
    too_long,
)
from modules.tools.Journal import Journal
from modules.util.errors import DataError, UserError
from modules.util.pairs.dpo_pair_files import file_sha256

JOB = "mask-painting"
MOST_KEPT = 256 << 20
"""Bytes of pixels kept for undo; the oldest are dropped first."""

Point = tuple[float, float]
"""Coordinates in pixels of the mask from its upper left corner; the centre of the first pixel is (0.5, 0.5)."""


class Area(NamedTuple):
    """Pixels from ``left`` and ``top`` up to, but not including, ``right`` and ``bottom``."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def place(self) -> tuple[slice, slice]:
        """An index for arrays of (height, width)."""
        return slice(self.top, self.bottom), slice(self.left, self.right)

    @property
    def empty(self) -> bool:
        """True if it contains no pixel."""
        return self.left >= self.right or self.top >= self.bottom

    def joined(self, other: Area | None) -> Area:
        """The smallest area that contains both."""
        if other is None or other.empty:
            return self
        if self.empty:
            return other
        return Area(
            min(self.left, other.left),
            min(self.top, other.top),
            max(self.right, other.right),
            max(self.bottom, other.bottom),
        )


class _Change(NamedTuple):
    area: Area
    before: numpy.ndarray
    after: numpy.ndarray


class Painting:
    """A mask being painted. Everything between ``begin`` and ``end`` is one step of undo.

    Args:
        levels: (height, width), uint8: 255 is learned, 0 is not.
    """

    def __init__(self, levels: numpy.ndarray) -> None:
        self.levels = numpy.array(levels, numpy.uint8)
        self._before: numpy.ndarray | None = None
        self._touched: Area | None = None
        self._done: list[_Change] = []
        self._undone: list[_Change] = []
        self._saved = self.levels.copy()

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.levels.shape[1], self.levels.shape[0]

    @property
    def changed(self) -> bool:
        """True if it differs from what was last saved."""
        return not numpy.array_equal(self.levels, self._saved)

    def saved(self, levels: numpy.ndarray) -> None:
        """Note that these levels are on disk."""
        self._saved = levels.copy()

    # --- painting -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a stroke."""
        self.end()
        self._before = self.levels.copy()

    def stroke(self, start: Point, end: Point, radius: float, level: int, strength: float = 1.0) -> Area:
        """Paint the pixels whose centre is at most ``radius`` from the line between two points.

        Within one stroke, paint does not accumulate: ``strength`` counts once, even if the brush passes
        twice.

        Args:
            radius: in pixels.
            level: 0 to 255.
            strength: 0 leaves what was there before the stroke, 1 replaces it with ``level``.

        Returns:
            The pixels that may have changed.
        """
        width, height = self.size
        area = Area(
            max(0, int(min(start[0], end[0]) - radius)),
            max(0, int(min(start[1], end[1]) - radius)),
            min(width, int(max(start[0], end[0]) + radius) + 1),
            min(height, int(max(start[1], end[1]) + radius) + 1),
        )
        if not area.empty:
            self._paint(area, _near(area, start, end, radius), level, strength)
        return area

    def fill(self, at: Point, level: int, strength: float = 1.0) -> Area:
        """Paint the pixel at a point and all connected pixels of the same level, edge to edge."""
        width, height = self.size
        column, row = int(at[0]), int(at[1])
        if not (0 <= column < width and 0 <= row < height):
            return Area(0, 0, 0, 0)
        chosen = _connected(self.levels == self.levels[row, column], column, row)
        rows, columns = numpy.flatnonzero(chosen.any(1)), numpy.flatnonzero(chosen.any(0))
        area = Area(int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
        self._paint(area, chosen[area.place], level, strength)
        return area

    def fill_all(self, level: int) -> Area:
        """Set all pixels to one level."""
        return self._repaint(numpy.full_like(self.levels, level))

    def invert(self) -> Area:
        """Swap learned and hidden areas."""
        return self._repaint(WHITE_LEVEL - self.levels)

    def _repaint(self, levels: numpy.ndarray) -> Area:
        self.begin()
        self.levels, self._touched = levels, Area(0, 0, *self.size)
        self.end()
        return Area(0, 0, *self.size)

    def end(self) -> None:
        """End a stroke, which can be undone from now on."""
        before, area = self._before, self._touched
        self._before = self._touched = None
        if before is None or area is None or area.empty:
            return
        change = _Change(area, before[area.place].copy(), self.levels[area.place].copy())
        if numpy.array_equal(change.before, change.after):
            return
        self._undone.clear()
        self._done.append(change)
        while len(self._done) > 1 and sum(2 * one.before.nbytes for one in self._done) > MOST_KEPT:
            del self._done[0]

    def _paint(self, area: Area, chosen: numpy.ndarray, level: int, strength: float) -> None:
        if self._before is None:
            raise RuntimeError("a stroke has to begin first")
        before = self._before[area.place]
        if strength >= 1:
            self.levels[area.place][chosen] = level
        else:
            mixed = before + (level - before.astype(numpy.float32)) * strength
            self.levels[area.place][chosen] = numpy.floor(mixed + 0.5).astype(numpy.uint8)[chosen]
        self._touched = area.joined(self._touched)

    # --- taking back ----------------------------------------------------------------------------------------------

    def undo(self) -> Area | None:
        """Undo the last stroke. Returns the changed area; ``None`` if there is nothing to undo."""
        return self._move(self._done, self._undone, after=False)

    def redo(self) -> Area | None:
        """Redo the last undone stroke."""
        return self._move(self._undone, self._done, after=True)

    def _move(self, source: list[_Change], target: list[_Change], after: bool) -> Area | None:
        self.end()
        if not source:
            return None
        change = source.pop()
        self.levels[change.area.place] = change.after if after else change.before
        target.append(change)
        return change.area


def _near(area: Area, start: Point, end: Point, radius: float) -> numpy.ndarray:
    """Pixels of an area whose centres are at most ``radius`` from a line: booleans (height, width)."""
    x = numpy.arange(area.left, area.right, dtype=numpy.float32)[None, :] + numpy.float32(0.5 - start[0])
    y = numpy.arange(area.top, area.bottom, dtype=numpy.float32)[:, None] + numpy.float32(0.5 - start[1])
    along = (end[0] - start[0], end[1] - start[1])
    # a shorter line than these numbers can hold is a dot
    length = numpy.float32(along[0] ** 2 + along[1] ** 2)
    if length:
        share = ((x * numpy.float32(along[0]) + y * numpy.float32(along[1])) / length).clip(0, 1)
        x, y = x - share * numpy.float32(along[0]), y - share * numpy.float32(along[1])
    near: numpy.ndarray = x * x + y * y <= numpy.float32(radius**2)
    return near


def _connected(same: numpy.ndarray, column: int, row: int) -> numpy.ndarray:
    """The pixels of ``same`` connected to one of them, edge to edge. Computed by runs, because pixel by pixel
    takes seconds.
    """
    height = same.shape[0]
    ends = numpy.diff(numpy.pad(same, ((0, 0), (1, 1))).astype(numpy.int8), axis=1)
    runs: dict[int, tuple[numpy.ndarray, numpy.ndarray]] = {}
    found = numpy.zeros_like(same)

    def runs_of(line: int) -> tuple[numpy.ndarray, numpy.ndarray]:
        if line not in runs:
            runs[line] = (numpy.flatnonzero(ends[line] == 1), numpy.flatnonzero(ends[line] == -1))
        return runs[line]

    waiting = [(row, column, column + 1)]
    while waiting:
        line, left, right = waiting.pop()
        starts, stops = runs_of(line)
        first = int(numpy.searchsorted(stops, left, side="right"))
        last = int(numpy.searchsorted(starts, right, side="left"))
        for number in range(first, last):
            start, stop = int(starts[number]), int(stops[number])
            if found[line, start]:
                continue
            found[line, start:stop] = True
            waiting += [(near, start, stop) for near in (line - 1, line + 1) if 0 <= near < height]
    return found


# --- files --------------------------------------------------------------------------------------------------------


class MaskChangedError(UserError):
    """A mask has changed since it was opened.

    Args:
        digest: digest of its current file; empty if there is none.
    """

    def __init__(self, name: str, digest: str) -> None:
        super().__init__(f"{name} was changed by another program while you painted", hint="open it again")
        self.digest = digest


@dataclass
class OpenedMask:
    """An image with the mask being painted.

    Args:
        image: RGB, upright.
        digest: digest of the mask's file when it was read; empty if there was none.
    """

    image: Image.Image
    painting: Painting = field(repr=False)
    digest: str = ""


def open_painting(root: Path, one: DataImage) -> OpenedMask:
    """Open an image and its mask, in the size of the image. Without a mask, everything is learned.

    Raises:
        DataError: one of them is unreadable, or they do not match.
    """
    name = mask_name(one)
    if too_long(name):
        raise DataError(f"the name of {one.name} is too long to have a mask next to it", hint="shorten it")
    image, target = opened_image(root / one.name).convert("RGB"), root / name
    if not is_there(target):
        return OpenedMask(image, Painting(numpy.full((image.height, image.width), WHITE_LEVEL, numpy.uint8)))
    if not target.is_file():
        raise DataError(f"{name} is not a file", hint="move it away")
    digest = file_sha256(target)
    return OpenedMask(image, Painting(fitting(opened_mask(target), image.size, name)), digest)


def save_painting(root: Path, one: DataImage, levels: numpy.ndarray, digest: str) -> str:
    """Write a mask next to its image. ``Journal.undo`` restores the old one.

    Args:
        levels: (height, width), uint8.
        digest: digest of the mask's file when it was read; empty if there was none.

    Returns:
        The digest of the written file.

    Raises:
        MaskChangedError: the file has changed since.
        UserError: another tool is working in the folder, or the file cannot be written.
    """
    name = mask_name(one)
    target = root / name
    with Journal(root).job(JOB) as job:
        now = file_sha256(target) if is_there(target) else ""
        if now != digest:
            raise MaskChangedError(name, now)
        job.replace([name] if now else [], {name: partial(save_mask, Image.fromarray(levels))})
    return file_sha256(target)
