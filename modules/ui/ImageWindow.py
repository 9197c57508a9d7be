"""A window that shows images nearly as large as the screen. The arrow keys move between them."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tkinter import ttk

from modules.ui.texts import window as words
from modules.ui.Ui import Ui
from modules.ui.widgets.ImagePrefetcher import prefetcher_of
from modules.ui.widgets.ImageView import ImageView, ZoomState
from modules.ui.widgets.tk_support import on_event, place_over, tie

SHARE = 0.9
"""Share of the screen."""
MIN_SIZE = (320, 240)
BUDGET = 256 * 2**20
BEFORE, AFTER = "\u2190", "\u2192"


@dataclass(frozen=True)
class ShownImage:
    """One image: its file and the text shown with it."""

    path: Path
    caption: str = ""


class ImageWindow(tk.Toplevel):
    """Show one of several images. It and its neighbours are decoded in a thread.

    Args:
        images: at least one.
        index: the image to show first.
        parent: the window it belongs to.
    """

    def __init__(
        self, ui: Ui, images: Sequence[ShownImage], index: int, parent: tk.Misc | None = None
    ) -> None:
        over = (parent or ui.root).winfo_toplevel()
        super().__init__(over)
        self.withdraw()
        px = ui.theme.px
        self.configure(background=ui.theme.palette.panel)
        self.images, self.index = tuple(images), index
        self._ui = ui
        self._prefetcher = prefetcher_of(self, ui.pump, lambda path: self.view.arrived(path), BUDGET)
        self._zoom = ZoomState()
        self.view = ImageView(self, self._prefetcher, self._zoom, font=ui.theme.fonts["text"])
        self.view.pack(side="top", fill="both", expand=True)
        foot = ttk.Frame(self, padding=px(6))
        foot.pack(side="bottom", fill="x", before=self.view)
        self.before = ttk.Button(foot, text=BEFORE, width=3, command=lambda: self.go(-1))
        self.after_ = ttk.Button(foot, text=AFTER, width=3, command=lambda: self.go(1))
        self.about = ttk.Label(foot, anchor="center", justify="center")
        close = ttk.Button(foot, text="Close", command=self.destroy)
        for button in (self.before, self.after_):
            button.pack(side="left", padx=(0, px(4)))
        close.pack(side="right")
        self.about.pack(side="left", fill="x", expand=True)
        self.about.bind("<Configure>", lambda event: self.about.configure(wraplength=max(1, event.width)))
        for key, step in (("<Left>", -1), ("<Right>", 1), ("<Prior>", -1), ("<Next>", 1)):
            self.bind(key, on_event(self.go, step))
        self.bind("<Home>", lambda _event: self.go(-len(self.images)))
        self.bind("<End>", lambda _event: self.go(len(self.images)))
        self.bind("<Escape>", lambda _event: self.destroy())
        self.bind("<KeyPress-z>", lambda _event: self._zoom.toggle_actual_size())
        self.view.bind("<Configure>", lambda _event: self._want(), add="+")
        width, height = (int(side * SHARE) for side in (self.winfo_screenwidth(), self.winfo_screenheight()))
        self.minsize(*MIN_SIZE)
        place_over(self, over, (width, height))
        tie(self, over)
        self.deiconify()
        self.focus_set()
        self._show()

    @property
    def shown(self) -> ShownImage:
        """The image being shown."""
        return self.images[self.index]

    def go(self, step: int) -> None:
        """Move to another image, stopping at the first and the last."""
        index = max(0, min(len(self.images) - 1, self.index + step))
        if index != self.index:
            self.index = index
            self._zoom.set(None)
            self._show()

    def _show(self) -> None:
        self.title(
            words.IMAGE_TITLE.format(name=self.shown.path.name, number=self.index + 1, count=len(self.images))
        )
        self.about.configure(text=self.shown.caption or str(self.shown.path))
        self.before.state([("" if self.index == 0 else "!") + "disabled"])
        self.after_.state([("" if self.index == len(self.images) - 1 else "!") + "disabled"])
        self.view.show(self.shown.path)
        self._want()

    def _want(self) -> None:
        near = [self.index, self.index + 1, self.index - 1]
        box = self.view.box
        self._prefetcher.want([(self.images[n].path, box) for n in near if 0 <= n < len(self.images)])
