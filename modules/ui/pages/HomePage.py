"""Home: the taste project, step by step."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from tkinter import ttk

from modules.ui.home.BoardView import BoardView
from modules.ui.home.dropping import Dropped
from modules.ui.home.DropTarget import DropTarget
from modules.ui.home.StartView import StartView
from modules.ui.pages.Page import Page
from modules.ui.pages.PageSpec import PageSpec
from modules.ui.Ui import Ui
from modules.ui.widgets.drop import accept_drops
from modules.ui.widgets.ScrollFrame import ScrollFrame


class HomePage(Page):
    """A form for a new project, or the cards of the open one."""

    def __init__(self, parent: tk.Misc, ui: Ui, spec: PageSpec) -> None:
        super().__init__(parent, ui, spec)
        self.watch = ui.services.home
        self._scroll = ScrollFrame(self, ui.theme)
        # created after the scrolling part, so that Tab reaches it last
        self._foot = ttk.Frame(self)
        self._scroll.pack(fill="both", expand=True)
        self.add_head(self._scroll.inside)
        self.view: StartView | BoardView | None = None
        self.watch.listen(self._changed, self)
        self.drops = DropTarget(ui, self.watch, self._form, ui.services.files.load)
        accept_drops(self, self.drops.take)
        self._changed()

    def _form(self) -> Callable[[Dropped], None] | None:
        return self.view.take_dropped if isinstance(self.view, StartView) else None

    def _changed(self) -> None:
        wanted = StartView if self.watch.project is None else BoardView
        if type(self.view) is not wanted:
            if self.view is not None:
                self.view.destroy()
            inside = self._scroll.inside
            self.view = (
                StartView(inside, self._foot, self.ui, self.watch)
                if wanted is StartView
                else BoardView(inside, self.ui, self.watch)
            )
            self.view.pack(fill="x")
            if wanted is StartView:
                self._foot.pack(side="bottom", fill="x", before=self._scroll)
            else:
                self._foot.pack_forget()
            self._scroll.top()
        if self.view is not None:
            self.view.refresh()

    def opened(self) -> None:
        self.watch.look()
