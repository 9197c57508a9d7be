"""A small window that lists keys."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from tkinter import ttk

from modules.ui.widgets.theme import Theme
from modules.ui.widgets.tk_support import IDLE, later

KeyList = Sequence[tuple[str, str]]


def show_keys(parent: tk.Misc, theme: Theme, keys: KeyList) -> tk.Toplevel:
    """Open the window. Escape, Return and F1 close it."""
    window = tk.Toplevel(parent.winfo_toplevel())
    window.title("Keys")
    window.transient(parent.winfo_toplevel())  # type: ignore[call-overload,unused-ignore]
    body = ttk.Frame(window, padding=theme.px(16))
    body.pack(fill="both", expand=True)
    for row, (key, meaning) in enumerate(keys):
        ttk.Label(body, text=key, style="Bold.TLabel").grid(row=row, column=0, sticky="w", pady=theme.px(2))
        ttk.Label(body, text=meaning).grid(row=row, column=1, sticky="w", padx=(theme.px(16), 0))
    for key in ("<Escape>", "<Return>", "<F1>"):
        window.bind(key, lambda _event: window.destroy())
    later(window, IDLE, window.focus_force)
    return window
