"""A small window that asks for confirmation before something that cannot be undone."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from tkinter import ttk

from modules.ui.texts import choosing as words
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.tk_support import focused, make_modal, place_over


class ConfirmWindow(tk.Toplevel):
    """Y or its button confirms; N, Escape or closing the window cancels. The harmless button has the focus.

    Args:
        question: what would happen, in one or two sentences.
        verb: text of the button that confirms.
        confirmed: called on confirmation.
        refused: called for N and its button, if this answer loses something too. No button has the focus then, so that
            Enter loses nothing. Closing the window does not count as an answer.
    """

    def __init__(
        self, parent: tk.Misc, theme: Theme, title: str, question: str, verb: str, confirmed: Callable[[], object],
        refused: Callable[[], object] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(parent.winfo_toplevel())
        self._confirmed, self._refused = confirmed, refused
        self._back = focused(parent) or parent.winfo_toplevel()
        self.withdraw()
        self.title(title)
        px = theme.px
        body = ttk.Frame(self, padding=px(16))
        body.pack(fill="both", expand=True)
        ttk.Label(body, text=question, wraplength=px(420), justify="left").pack(anchor="w")
        foot = ttk.Frame(body)
        foot.pack(anchor="e", pady=(px(14), 0))
        self.no = ttk.Button(foot, text=words.KEEP, command=self.refuse, style="Accent.TButton")
        self.yes = ttk.Button(foot, text=words.YES.format(verb=verb), command=self.confirm)
        for button in (self.yes, self.no):
            button.pack(side="left", padx=(px(6), 0))
            button.bind("<Return>", lambda event: event.widget.invoke())
        for key in ("<KeyPress-n>", "<KeyPress-N>"):
            self.bind(key, lambda _event: self.refuse())
        self.bind("<Escape>", lambda _event: self.keep())
        self.protocol("WM_DELETE_WINDOW", self.keep)
        for key in ("<KeyPress-y>", "<KeyPress-Y>"):
            self.bind(key, lambda _event: self.confirm())
        self._place(parent.winfo_toplevel())

    def _place(self, over: tk.Tk | tk.Toplevel) -> None:
        place_over(self, over)
        self.resizable(False, False)
        make_modal(self, over)
        (self if self._refused else self.no).focus_set()

    def confirm(self) -> None:
        """Confirm and close."""
        self.keep()
        self._confirmed()

    def refuse(self) -> None:
        """Close with the answer N."""
        self.keep()
        if self._refused is not None:
            self._refused()

    def keep(self) -> None:
        """Close without confirming and restore the focus."""
        self.destroy()
        if self._back.winfo_exists():
            self._back.focus_force()
