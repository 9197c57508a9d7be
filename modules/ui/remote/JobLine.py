"""A line that shows what is being done on another computer, with a button that cancels it."""

from __future__ import annotations

import tkinter as tk
from tkinter import ttk

from modules.ui.texts import remote as words
from modules.ui.Ui import Ui
from modules.ui.widgets.tk_support import fit_middle, show_in_grid


class JobLine(ttk.Frame):
    """The line. It is empty while nothing is done and nothing was."""

    def __init__(self, parent: tk.Misc, ui: Ui) -> None:
        px = ui.theme.px
        super().__init__(parent)
        self._ui, self._text = ui, ""
        self.columnconfigure(0, weight=1)
        self.label = ttk.Label(self, anchor="w", width=10)
        self.label.grid(row=0, column=0, sticky="ew")
        self.bar = ttk.Progressbar(self, maximum=1.0, length=px(160))
        self.bar.grid(row=0, column=1, padx=px(8))
        self.button = ttk.Button(self, text=words.CANCEL, command=lambda: ui.services.remote.cancel())
        self.button.grid(row=0, column=2)
        self.button.bind("<Return>", lambda _event: self.button.invoke())
        ui.services.tooltips.add(self.label, lambda: self._text)
        self.label.bind("<Configure>", lambda _event: self._fit())
        ui.services.remote.listen(self.show, self)
        self.show()

    def show(self) -> None:
        """Show the present state."""
        remote = self._ui.services.remote
        self._text = remote.doing or remote.said
        self._fit()
        show_in_grid(self.bar, remote.share is not None)
        self.bar.configure(value=remote.share or 0.0)
        show_in_grid(self.button, bool(remote.doing))

    def _fit(self) -> None:
        width = self.label.winfo_width()
        text = fit_middle(self._text, width, self._ui.theme.fonts["text"])
        if self.label.cget("text") != text:
            self.label.configure(text=text)
