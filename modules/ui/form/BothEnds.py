"""Shows both ends of a path that is longer than its entry field while the field has no focus."""

from __future__ import annotations

import tkinter as tk
from tkinter import ttk

from modules.ui.widgets.theme import Theme
from modules.ui.widgets.tk_support import IDLE, fit_middle, focused, later

INSET = 6
"""Distance of the text from the edge of the field."""


class BothEnds:
    """Covers an entry field with its text, shortened in the middle, unless the field has the focus or the
    text fits.

    The text itself is not changed.
    """

    def __init__(self, entry: ttk.Entry, variable: tk.StringVar, theme: Theme) -> None:
        self._entry, self._variable, self._theme = entry, variable, theme
        self.cover = tk.Label(
            entry, anchor="w", borderwidth=0, padx=0, pady=0, font=theme.fonts["text"], cursor="xterm"
        )
        self.cover.bind("<Button-1>", lambda _event: self._take_focus())
        theme.on_change(self._colour, self.cover)
        self._colour()
        trace = variable.trace_add("write", lambda *_: self._soon())
        entry.bind("<Destroy>", lambda _event: variable.trace_remove("write", trace), add="+")
        for event in ("<FocusIn>", "<FocusOut>", "<Configure>"):
            entry.bind(event, lambda _event: self._soon(), add="+")

    def _take_focus(self) -> str:
        self._entry.focus_set()
        return "break"  # otherwise the cover, which was clicked, would get the focus after all

    def _colour(self) -> None:
        palette = self._theme.palette
        self.cover.configure(background=palette.field, foreground=palette.text)

    def _soon(self) -> None:
        if self._entry.winfo_exists():
            later(self._entry, IDLE, self._show)

    def _show(self) -> None:
        inset = self._theme.px(INSET)
        room = self._entry.winfo_width() - 2 * inset
        text = self._variable.get()
        fitting = fit_middle(text, room, self._theme.fonts["text"])
        if fitting == text or focused(self._entry) is self._entry or room < inset:
            self.cover.place_forget()
            return
        self.cover.configure(text=fitting)
        self.cover.place(x=inset, rely=0.5, anchor="w", width=room, relheight=0.7)
