"""Top-level windows of tools, next to the main window or as a program."""

from __future__ import annotations

import tkinter as tk

from modules.ui.widgets.ScrollFrame import install_wheel
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.tk_support import select_all_with_ctrl_a

WIDTH, HEIGHT = 1180, 760
ROOM = 0.94


def new_window(parent: tk.Misc, theme: Theme) -> tk.Toplevel:
    """Make an empty window next to that of ``parent``."""
    window = tk.Toplevel(parent)
    theme.on_change(lambda: window.configure(background=theme.palette.back), window)
    _fit(window, theme)
    return window


def program_window(appearance: str, scale: int) -> tuple[tk.Tk, Theme]:
    """Make the empty, still hidden window of a program, and its theme."""
    root = tk.Tk(className="Tastemaker")
    root.withdraw()
    install_wheel(root)
    select_all_with_ctrl_a(root)
    theme = Theme(root)
    theme.apply(appearance, scale)
    _fit(root, theme)
    return root, theme


def _fit(window: tk.Tk | tk.Toplevel, theme: Theme) -> None:
    """Size the window generously, but never larger than the screen."""
    width = min(theme.px(WIDTH), int(window.winfo_screenwidth() * ROOM))
    height = min(theme.px(HEIGHT), int(window.winfo_screenheight() * ROOM) - 30)
    left = (window.winfo_screenwidth() - width) // 2
    window.geometry(f"{width}x{height}+{left}+{max(0, (window.winfo_screenheight() - height) // 3)}")
    window.minsize(480, 320)
