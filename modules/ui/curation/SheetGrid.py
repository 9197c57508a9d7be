"""Thumbnails of several prompts in sections, each below its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from modules.ui.widgets.ImagePrefetcher import Shown
from modules.ui.widgets.ThumbGrid import ThumbGrid
from modules.ui.widgets.tk_support import shade

LARGEST_HIDDEN = 0.25
"""An image is in view if at most this share of its height is hidden."""


@dataclass(frozen=True)
class Section:
    """A prompt and its images."""

    title: str
    paths: Sequence[Shown]


@dataclass(frozen=True)
class _Plan:
    """Positions of images and sections, in pixels.

    Args:
        tops: upper edge of each section, then the lower edge of the last one.
        corners: left and top of each image's place.
    """

    tops: list[int]
    corners: list[tuple[int, int]]

    @classmethod
    def of(cls, columns: int, cell: int, heading: int, counts: Sequence[int]) -> _Plan:
        tops = [0, *accumulate(heading + -(-count // columns) * cell for count in counts)]
        corners = [
            (place % columns * cell, top + heading + place // columns * cell)
            for top, count in zip(tops, counts, strict=False)
            for place in range(count)
        ]
        return cls(tops, corners)


class SheetGrid(ThumbGrid):
    """A grid in sections. Positions count through all sections."""

    sections: Sequence[Section] = ()
    heading = 26
    """Height of a section's title in pixels."""
    _planned: tuple[tuple[Any, ...], _Plan] | None = None

    def show_sections(self, sections: Sequence[Section], captions: Sequence[str], keep_place: bool) -> None:
        """Show these sections in this order."""
        self.sections = list(sections)
        self.show([path for one in sections for path in one.paths], captions, keep_place)

    # --- geometry -----------------------------------------------------------------------------------------------

    def _plan(self) -> _Plan:
        """Compute the layout; cached until the sections, the width or the image size change."""
        columns = self.columns()
        key = (columns, self.cell, self.heading, tuple(len(one.paths) for one in self.sections))
        if self._planned is None or self._planned[0] != key:
            self._planned = (key, _Plan.of(*key))
        return self._planned[1]

    def _height(self) -> int:
        return self._plan().tops[-1]

    def _corner(self, index: int) -> tuple[int, int]:
        return self._plan().corners[index]

    def _visible(self) -> range:
        top = self.canvas.canvasy(0)
        bottom = top + self.canvas.winfo_height()
        corners = self._plan().corners
        inside = [i for i, (_, upper) in enumerate(corners) if upper + self.cell > top and upper < bottom]
        return range(inside[0], inside[-1] + 1) if inside else range(0)

    def _place_at(self, x: float, y: float) -> int | None:
        for index, (left, top) in enumerate(self._plan().corners):
            if left <= x < left + self.cell and top <= y < top + self.cell:
                return index
        return None

    def in_view(self) -> list[int]:
        """The images a person can judge: drawn, and almost fully visible."""
        if not self.canvas.winfo_viewable():
            return []
        top, height = self.canvas.canvasy(0), self.canvas.winfo_height()
        found = []
        for index in self._visible():
            start = self._corner(index)[1]
            shown = min(start + self.cell, top + height) - max(start, top)
            enough = shown >= (1 - LARGEST_HIDDEN) * min(self.cell, height)
            if enough and self.is_drawn(index):
                found.append(index)
        return found

    def has_failed(self, index: int) -> bool:
        """Return whether an image cannot be shown."""
        return self._prefetcher.failure(self.paths[index]) is not None

    def on_screen(self) -> range:
        """Images that are at least partly visible, drawn or not."""
        return self._visible() if self.canvas.winfo_viewable() else range(0)

    # --- drawing and hands --------------------------------------------------------------------------------------

    def _draw_between(self) -> None:
        top = self.canvas.canvasy(0)
        bottom = top + self.canvas.winfo_height()
        for one, upper in zip(self.sections, self._plan().tops, strict=False):
            if upper + self.heading > top and upper < bottom:
                self.canvas.create_text(
                    8, upper + self.heading // 2, text=one.title, anchor="w", fill=shade("#e0e0e0", "#202020"),
                    font=self._font, tags="heading",
                )  # fmt: skip

    def move_cursor(self, key: str) -> bool:
        if key not in ("Up", "Down"):
            return super().move_cursor(key)
        corners = self._plan().corners
        if not corners:
            return True
        left, top = corners[self.cursor]
        tops = sorted({upper for _, upper in corners})
        row = tops.index(top) + (1 if key == "Down" else -1)
        if 0 <= row < len(tops):
            same = [index for index, (_, upper) in enumerate(corners) if upper == tops[row]]
            self.cursor = max((i for i in same if corners[i][0] <= left), default=same[0])
        self.see_cursor()
        return True
