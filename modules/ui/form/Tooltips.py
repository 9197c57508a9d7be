"""Texts that appear next to the pointer when it rests on a widget."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from tkinter import ttk

from modules.ui.widgets.theme import Theme
from modules.ui.widgets.tk_support import cancel_timer, later

DELAY_MS = 500
WIDTH = 380


class Tooltips:
    """One small window for all tooltips of a program."""

    def __init__(self, theme: Theme) -> None:
        self._theme = theme
        self._window: tk.Toplevel | None = None
        self._timer: str | None = None

    def add(self, widget: tk.Misc, text: str | Callable[[], str]) -> None:
        """Set the tooltip of ``widget``. A function is called each time it is shown; an empty text shows
        nothing.
        """
        widget.bind("<Enter>", lambda _event: self._wait(widget, text), add="+")
        for name in ("<Leave>", "<ButtonPress>", "<Destroy>"):
            widget.bind(name, lambda _event: self.hide(), add="+")
        if not isinstance(widget, (ttk.Label, ttk.Frame)):  # Tab would stop at a label that has a binding of a key
            widget.bind("<KeyPress>", lambda _event: self.hide(), add="+")

    def _wait(self, widget: tk.Misc, text: str | Callable[[], str]) -> None:
        self.hide()
        self._timer = later(self._theme.root, DELAY_MS, lambda: self._show(widget, text))

    def _show(self, widget: tk.Misc, text: str | Callable[[], str]) -> None:
        self._timer = None
        words = text() if callable(text) else text
        if not words or not widget.winfo_exists():
            return
        theme = self._theme
        window = tk.Toplevel(theme.root)
        window.wm_overrideredirect(True)
        palette = theme.palette
        label = tk.Label(
            window, text=words, justify="left", wraplength=theme.px(WIDTH), font=theme.fonts["small"],
            background=palette.field, foreground=palette.text, padx=theme.px(9), pady=theme.px(6),
            highlightthickness=1, highlightbackground=palette.border,
        )  # fmt: skip
        label.pack()
        label.update_idletasks()
        left = min(widget.winfo_pointerx() + 12, window.winfo_screenwidth() - label.winfo_reqwidth() - 8)
        top = widget.winfo_rooty() + widget.winfo_height() + 4
        if top + label.winfo_reqheight() > window.winfo_screenheight():
            top = widget.winfo_rooty() - label.winfo_reqheight() - 4
        window.wm_geometry(f"+{max(0, left)}+{max(0, top)}")
        self._window = window

    def hide(self) -> None:
        """Hide the tooltip, or cancel one about to be shown."""
        if self._timer is not None:
            cancel_timer(self._theme.root, self._timer)
            self._timer = None
        if self._window is not None:
            self._window.destroy()
            self._window = None
