"""The sources of edits, next to the grid of their results."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from tkinter import font as tkfont
from tkinter import ttk

from modules.ui.curation.ChoiceView import MOST_SHOWN
from modules.ui.widgets.ImagePrefetcher import ImagePrefetcher, Key, Shown
from modules.ui.widgets.ImageView import ImageView, ZoomState
from modules.ui.widgets.ThumbGrid import PAD
from modules.ui.widgets.tk_support import show_in_grid


class SourcePane(ttk.Frame):
    """Sources one below the other, each as large as an image of the grid. Empty if nothing is edited."""

    def __init__(
        self, parent: tk.Misc, prefetcher: ImagePrefetcher, font: tkfont.Font, style: str = "Back.TFrame"
    ) -> None:
        super().__init__(parent, style=style)
        # the grid does not zoom, so neither do the sources
        self.views = [ImageView(self, prefetcher, ZoomState(), font=font) for _ in range(MOST_SHOWN)]
        self._shown: Sequence[Shown] = ()

    def show(self, sources: Sequence[Shown], captions: Sequence[str], cell: int) -> None:
        """Show sources with captions; ``cell`` is the side of an image's place in the grid, in pixels."""
        side = cell - 2 * PAD
        self._shown = sources[:MOST_SHOWN]
        for row, view in enumerate(self.views):
            if row < len(self._shown):
                view.configure(width=side, height=side)
                view.grid(row=row, column=0, padx=PAD, pady=PAD)
                view.show(self._shown[row], captions[row])
            else:
                view.grid_remove()
                view.show(None)
        show_in_grid(self, bool(self._shown))

    def wanted(self) -> list[Key]:
        """The sources to decode."""
        return [(path, view.box) for path, view in zip(self._shown, self.views, strict=False)]

    def arrived(self, path: Shown) -> None:
        """Handle a decoded image."""
        for view in self.views:
            view.arrived(path)
