"""The sources of edits, next to the grid of their results."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from tkinter import ttk

from modules.curation.ImageGroup import ImageGroup
from modules.ui.curation.ChoiceView import MOST_SHOWN, ViewContext, source_captions, sources_at_scale
from modules.ui.widgets.ImagePrefetcher import Key, Shown
from modules.ui.widgets.ImageView import ImageView, ZoomState
from modules.ui.widgets.ThumbGrid import PAD


class SourcePane(ttk.Frame):
    """Sources one below the other, each as large as an image of the grid. Empty if nothing is edited."""

    def __init__(self, parent: tk.Misc, context: ViewContext) -> None:
        super().__init__(parent, style="Back.TFrame")
        self._context = context
        font = context.theme.fonts["text"]
        # the grid does not zoom, so neither do the sources
        self.views = [ImageView(self, context.prefetcher, ZoomState(), font=font) for _ in range(MOST_SHOWN)]
        self._shown: Sequence[Shown] = ()

    def show(self, group: ImageGroup, cell: int) -> None:
        """Show the sources of a group; ``cell`` is the side of an image's place in the grid, in pixels."""
        side = cell - 2 * PAD
        self._shown = sources_at_scale(group)
        captions = source_captions(group, self._context.blind)
        for row, view in enumerate(self.views):
            if row < len(self._shown):
                view.configure(width=side, height=side)
                view.grid(row=row, column=0, padx=PAD, pady=PAD)
                view.show(self._shown[row], captions[row])
            else:
                view.grid_remove()
                view.show(None)
        if self._shown:
            self.grid()
        else:
            self.grid_remove()

    def wanted(self) -> list[Key]:
        """The sources to decode."""
        return [(path, view.box) for path, view in zip(self._shown, self.views, strict=False)]

    def arrived(self, path: Shown) -> None:
        """Handle a decoded image."""
        for view in self.views:
            view.arrived(path)
