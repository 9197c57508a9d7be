"""Thumbnails of several prompts, one below the other, each below its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from modules.ui.widgets.ThumbGrid import ThumbGrid
from modules.ui.widgets.tk_support import shade

LARGEST_HIDDEN = 0.25
"""An image is in view if no more than this share of its height is hidden."""


@dataclass(frozen=True)
class Section:
    """A prompt and its images."""

    title: str
    paths: Sequence[Path]


class SheetGrid(ThumbGrid):
    """A grid in sections. Positions count through all of them."""

    sections: Sequence[Section] = ()
    heading = 26
    """Height of a section's title, in pixels."""

    def show_sections(self, sections: Sequence[Section], captions: Sequence[str], keep_place: bool) -> None:
        """Put up these sections in this order."""
        self.sections = list(sections)
        self.show([path for one in sections for path in one.paths], captions, keep_place)

    # --- geometry -----------------------------------------------------------------------------------------------

    def _starts(self) -> list[int]:
        """Position of the first image of each section."""
        return [0, *accumulate(len(one.paths) for one in self.sections)][:-1]

    def _tops(self) -> list[int]:
        """Upper edge of each section, and the lower one of the last."""
        heights = [self.heading + -(-len(one.paths) // self.columns()) * self.cell for one in self.sections]
        return [0, *accumulate(heights)]

    def _section(self, index: int) -> int:
        return sum(start <= index for start in self._starts()) - 1

    def _height(self) -> int:
        return self._tops()[-1]

    def _corner(self, index: int) -> tuple[int, int]:
        section = self._section(index)
        row, column = divmod(index - self._starts()[section], self.columns())
        return column * self.cell, self._tops()[section] + self.heading + row * self.cell

    def _visible(self) -> range:
        top = self.canvas.canvasy(0)
        bottom = top + self.canvas.winfo_height()
        tops = [self._corner(index)[1] for index in range(len(self.paths))]
        inside = [index for index, one in enumerate(tops) if one + self.cell > top and one < bottom]
        return range(inside[0], inside[-1] + 1) if inside else range(0)

    def _place_at(self, x: float, y: float) -> int | None:
        column = int(x // self.cell)
        for section, (start, top) in enumerate(zip(self._starts(), self._tops(), strict=False)):
            row = (y - top - self.heading) // self.cell
            index = start + int(row) * self.columns() + column
            if row >= 0 and column < self.columns() and index < start + len(self.sections[section].paths):
                below = self._tops()[section + 1]
                if y < below:
                    return index
        return None

    def in_view(self) -> list[int]:
        """Images a person can judge: they are drawn, and hardly anything of them is hidden."""
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

    def is_drawn(self, index: int) -> bool:
        """Whether an image is on the screen, rather than on its way to it."""
        return (self.paths[index], self._box()) in self._photos

    # --- drawing and hands --------------------------------------------------------------------------------------

    def _draw_between(self) -> None:
        top = self.canvas.canvasy(0)
        bottom = top + self.canvas.winfo_height()
        for one, upper in zip(self.sections, self._tops(), strict=False):
            if upper + self.heading > top and upper < bottom:
                self.canvas.create_text(
                    8, upper + self.heading // 2, text=one.title, anchor="w", fill=shade("#e0e0e0", "#202020"),
                    font=self._font, tags="heading",
                )  # fmt: skip

    def move_cursor(self, key: str) -> bool:
        if key not in ("Up", "Down"):
            return super().move_cursor(key)
        left, top = self._corner(self.cursor)
        tops = sorted({self._corner(index)[1] for index in range(len(self.paths))})
        row = tops.index(top) + (1 if key == "Down" else -1)
        if 0 <= row < len(tops):
            same = [index for index in range(len(self.paths)) if self._corner(index)[1] == tops[row]]
            self.cursor = max((i for i in same if self._corner(i)[0] <= left), default=same[0])
        self.see_cursor()
        return True
