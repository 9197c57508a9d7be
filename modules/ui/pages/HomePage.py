"""Home: the taste project, step by step."""

from __future__ import annotations

import tkinter as tk

from modules.ui.home.BoardView import BoardView
from modules.ui.home.StartView import StartView
from modules.ui.pages.Page import Page
from modules.ui.pages.PageSpec import PageSpec
from modules.ui.Ui import Ui
from modules.ui.widgets.ScrollFrame import ScrollFrame


class HomePage(Page):
    """A form for a project, or the cards of the one that is open."""

    def __init__(self, parent: tk.Misc, ui: Ui, spec: PageSpec) -> None:
        super().__init__(parent, ui, spec)
        self.watch = ui.services.home
        self._scroll = ScrollFrame(self, ui.theme)
        self._scroll.pack(fill="both", expand=True)
        self.add_head(self._scroll.inside)
        self.view: StartView | BoardView | None = None
        self.watch.listen(self._changed, self)
        self._changed()

    def _changed(self) -> None:
        wanted = StartView if self.watch.project is None else BoardView
        if type(self.view) is not wanted:
            if self.view is not None:
                self.view.destroy()
            self.view = wanted(self._scroll.inside, self.ui, self.watch)
            self.view.pack(fill="x")
            self._scroll.top()
        if isinstance(self.view, BoardView):
            self.view.refresh()

    def opened(self) -> None:
        self.watch.look()
