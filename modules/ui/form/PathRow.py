"""A path in a form: its title, a field, and buttons that ask for it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from tkinter import ttk

from modules.ui.form.BothEnds import BothEnds
from modules.ui.texts import home as words
from modules.ui.Ui import Ui
from modules.ui.widgets.Chooser import What


class PathRow:
    """A row of a grid: the title in column 1, field and buttons in column 2.

    Args:
        parent: the grid.
        row: its row there.
        title: what the path is.
        submit: called on Enter in the field.
        folder: title of the dialog that asks for a folder; empty if it is never one.
        file: title of the dialog that asks for a file; empty if it is never one.
    """

    def __init__(
        self,
        parent: tk.Misc,
        row: int,
        ui: Ui,
        title: str,
        submit: Callable[[], object],
        folder: str = "",
        file: str = "",
    ) -> None:
        px, self._ui, self._row = ui.theme.px, ui, row
        self.value = tk.StringVar(parent)
        self._label = ttk.Label(parent, text=title)
        self._holder = ttk.Frame(parent)
        self._holder.columnconfigure(0, weight=1)
        self.entry = ttk.Entry(self._holder, textvariable=self.value, font=ui.theme.fonts["text"], width=10)
        self.entry.grid(row=0, column=0, sticky="ew")
        self.entry.bind("<Return>", lambda _event: submit())
        BothEnds(self.entry, self.value, ui.theme)
        self.buttons: list[ttk.Button] = []
        if folder:
            self._button(words.BROWSE, "folder", folder)
        if file:
            self._button(words.FILE, "file", file)
        for column, button in enumerate(self.buttons, 1):
            button.grid(row=0, column=column, padx=(px(4), 0))
        self.show(True)

    def _button(self, text: str, what: What, title: str) -> None:
        def choose() -> None:
            found = self._ui.chooser.path(what, title, self.value.get().strip(), self._holder)
            if found is not None:
                self.value.set(str(found))

        button = ttk.Button(self._holder, text=text, command=choose)
        button.bind("<Return>", lambda _event: button.invoke())
        self.buttons.append(button)

    @property
    def shown(self) -> bool:
        return bool(self._holder.grid_info())

    @property
    def text(self) -> str:
        """The text in the field; empty while it is hidden."""
        return self.value.get().strip() if self.shown else ""

    def show(self, shown: bool) -> None:
        """Show or hide it. What was typed stays."""
        if not shown:
            self._label.grid_remove()
            self._holder.grid_remove()
            return
        self._label.grid(row=self._row, column=1, sticky="w")
        self._holder.grid(row=self._row, column=2, sticky="ew", pady=self._ui.theme.px(3))
