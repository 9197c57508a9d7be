"""A grid of thumbnails with captions and multiple selection."""

from __future__ import annotations

import tkinter as tk
from bisect import bisect_right
from collections.abc import Callable
from tkinter import font as tkfont

from PIL import ImageTk

from modules.ui.captions.CaptionList import CaptionList
from modules.ui.texts import captions as words
from modules.ui.widgets.ImagePrefetcher import ImagePrefetcher, Key
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.ThumbGrid import PAD, ThumbGrid
from modules.ui.widgets.tk_support import BAD

LINES = 3
CELL = 176
SHIFT, CONTROL = 0x1, 0x4
MAX_WRAPPED = 4000
MOST_MEASURED = 400


def wrapped(text: str, width: int, lines: int, measure: Callable[[str], int]) -> str:
    """Wrap a text at a width in pixels. After ``lines`` lines it ends with an ellipsis."""
    made: list[str] = []
    waiting = text.split()
    while waiting and len(made) < lines:
        line = _cut(waiting.pop(0), width, measure)
        while waiting and measure(f"{line} {waiting[0]}") <= width:
            line = f"{line} {waiting.pop(0)}"
        made.append(line)
    if waiting and made:
        while made[-1] and measure(f"{made[-1]}\u2026") > width:
            made[-1] = made[-1][:-1]
        made[-1] += "\u2026"
    return "\n".join(made)


def _cut(word: str, width: int, measure: Callable[[str], int]) -> str:
    """The part of a long word that fits."""
    if len(word) <= MOST_MEASURED and measure(word) <= width:
        return word
    lengths = range(2, min(len(word), MOST_MEASURED) + 1)
    return word[: 1 + bisect_right(lengths, width, key=lambda length: measure(word[:length]))]


class CaptionGrid(ThumbGrid):
    """The grid of the editor.

    Args:
        shown: the images; after changing it, the page calls ``renew``.
        chosen: called on a click with the place and whether Shift and Ctrl were held.
        opened: called on a double click.
    """

    def __init__(
        self,
        parent: tk.Misc,
        theme: Theme,
        prefetcher: ImagePrefetcher,
        shown: CaptionList,
        chosen: Callable[[int, bool, bool], None],
        opened: Callable[[], None],
    ) -> None:
        self._list, self._theme, self._chosen = shown, theme, chosen
        self._small: tkfont.Font = theme.fonts["small"]
        self._wrapped: dict[tuple[str, int, int], str] = {}
        self._selected: set[int] = set()
        self.masks = True
        super().__init__(parent, prefetcher, cell=theme.px(CELL), font=theme.fonts["text"])
        self.canvas.bind("<Double-Button-1>", lambda _event: opened())
        theme.on_change(self.renew, self)

    def renew(self) -> None:
        """Redraw after a change of images, captions, selection or theme."""
        self.foot = LINES * self._small.metrics("linespace") + self._theme.px(8)
        if self.winfo_exists():
            self._take_selection()
            self.redraw()

    def follow(self) -> None:
        """Scroll the cursor into view after the cursor or selection moved."""
        self._take_selection()
        self.see_cursor()

    def _take_selection(self) -> None:
        self.cursor, self._selected = self._list.cursor, self._list.chosen

    def put_up(self, keep_place: bool = False) -> None:
        """Show other images."""
        self._selected = self._list.chosen
        self.show(self._list.pictures(self.masks), (), keep_place)
        if self.cursor != self._list.cursor:
            self.follow()

    def on_screen(self) -> range:
        """The places that are at least partly visible."""
        return self._visible()

    def in_sight(self) -> list[Key]:
        """The images in view and one screen before and after. With thousands of images, the rest can wait."""
        visible = self._visible()
        more = max(1, len(visible))
        after = range(visible.stop, min(len(self.paths), visible.stop + more))
        before = range(max(0, visible.start - more), visible.start)
        return [(self.paths[place], self._box()) for place in (*visible, *after, *reversed(before))]

    def _release(self, event: tk.Event[tk.Misc]) -> None:
        start, self._dragging = self._dragging, None
        end = self._at(event)
        if end is not None and start == end:
            state = int(event.state)
            self._chosen(end, bool(state & SHIFT), bool(state & CONTROL))

    def _draw_cell(self, index: int, left: int, top: int, used: dict[Key, ImageTk.PhotoImage]) -> None:
        palette = self._theme.palette
        if index in self._selected:
            self.canvas.create_rectangle(
                left + 2, top + 2, left + self.cell - 2, top + self.row_height - 2,
                fill=palette.selected, outline=palette.accent, width=1,
            )  # fmt: skip
        super()._draw_cell(index, left, top, used)
        name = self._list.name_at(index)
        text, colour = self._caption(name)
        self.canvas.create_text(
            left + PAD + 2, top + self.cell, text=text, anchor="nw", fill=colour, font=self._small
        )
        if name in self._list.drafts:
            mark = (left + self.cell - PAD, top + PAD)
            self.canvas.create_text(*mark, text=words.NOT_SAVED, anchor="ne", fill=BAD, font=self._small)

    def _caption(self, name: str) -> tuple[str, str]:
        palette, known = self._theme.palette, self._list.captions.get(name)
        if known is None:
            return "\u2026", palette.muted
        if known.fault:
            return self._in_lines(known.fault), palette.error
        text = self._list.text(name) or ""
        return (self._in_lines(text), palette.text) if text.strip() else (words.NO_CAPTION, palette.warning)

    def _in_lines(self, text: str) -> str:
        """Wrap a text, cached because a redraw has no time to measure it."""
        key = (text, self.cell, self.foot)
        if key not in self._wrapped:
            if len(self._wrapped) >= MAX_WRAPPED:
                self._wrapped.clear()
            # text this far along is not visible at any width
            seen, room = text[:MOST_MEASURED], self.cell - 2 * PAD - 4
            self._wrapped[key] = wrapped(seen, room, LINES, self._small.measure)
        return self._wrapped[key]
