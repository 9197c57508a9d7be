"""A path in a form: its title, a field, and buttons that ask for it."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from pathlib import Path
from tkinter import ttk

from modules.ui.form.BothEnds import BothEnds
from modules.ui.texts import home as words
from modules.ui.Ui import Ui


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
        asks: list[tuple[str, str, Callable[..., Path | None]]] = [
            (words.BROWSE, folder, ui.chooser.folder), (words.FILE, file, ui.chooser.file),
        ]  # fmt: skip
        self.buttons: list[ttk.Button] = []
        for text, asked, ask in asks:
            if asked:
                self._button(text, asked, ask)
        for column, button in enumerate(self.buttons, 1):
            button.grid(row=0, column=column, padx=(px(4), 0))
        self.show(True)

    def _button(self, text: str, title: str, ask: Callable[..., Path | None]) -> None:
        def choose() -> None:
            found = ask(title, self.value.get().strip(), parent=self._holder)
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
