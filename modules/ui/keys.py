"""The keys of the main window."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from typing import TYPE_CHECKING

from modules.ui.widgets.ScrollFrame import ScrollFrame

if TYPE_CHECKING:
    from modules.ui.MainWindow import MainWindow

KEYS = (
    ("Ctrl+1 \u2026 Ctrl+0", "the pages"),
    ("Ctrl+Tab, Ctrl+Shift+Tab", "next and previous page"),
    ("Ctrl+F", "search all settings"),
    ("Ctrl+N, Ctrl+O, Ctrl+S, Ctrl+Shift+S", "new, open, save, save as"),
    ("Ctrl+I", "import from OneTrainer"),
    ("Ctrl+Z, Ctrl+Y", "undo, redo"),
    ("Ctrl+R", "reset the field to its default"),
    ("F4", "list of problems"),
    ("F5, Shift+F5", "start, stop"),
    ("F6, F7, F8", "pause or go on, backup, samples"),
    ("Ctrl+plus, Ctrl+minus, Ctrl+0 on the number pad", "size"),
    ("Page up, Page down", "scroll the page"),
)


def bind_keys(window: MainWindow) -> None:
    """Bind everything."""
    files, runs = window.files, window.runs
    bound: dict[str, Callable[[], object]] = {
        "<Control-f>": lambda: window.top_bar.search.focus_entry(),
        "<Control-n>": files.new,
        "<Control-o>": files.ask_load,
        "<Control-s>": files.save,
        "<Control-S>": files.ask_save,
        "<Control-i>": files.ask_import,
        "<Control-z>": window.undo,
        "<Control-y>": window.redo,
        "<Control-Z>": window.redo,
        "<Control-q>": window.quit_window,
        "<Control-plus>": lambda: window.zoom(1),
        "<Control-equal>": lambda: window.zoom(1),
        "<Control-KP_Add>": lambda: window.zoom(1),
        "<Control-minus>": lambda: window.zoom(-1),
        "<Control-KP_Subtract>": lambda: window.zoom(-1),
        "<Control-KP_0>": lambda: window.zoom(0),
        "<Control-Tab>": lambda: _turn(window, 1),
        "<Control-Shift-Tab>": lambda: _turn(window, -1),
        "<F4>": window.toggle_problems,
        "<F5>": runs.start,
        "<Shift-F5>": lambda: runs.order("stop"),
        "<F6>": lambda: runs.order("resume" if window.control.state == "paused" else "pause"),
        "<F7>": lambda: runs.order("backup"),
        "<F8>": lambda: runs.order("sample"),
    }
    if window.tk.call("tk", "windowingsystem") == "x11":
        bound["<Control-ISO_Left_Tab>"] = lambda: _turn(window, -1)
    for number, page in enumerate(window.pages[:10], 1):
        bound[f"<Control-Key-{number % 10}>"] = lambda key=page.key: window.show_page(key)  # type: ignore[misc]
    # on X11 Ctrl+Y also means paste, which would be an edit and leave nothing to do again
    window.event_delete("<<Paste>>", "<Control-Key-y>", "<Control-Lock-Key-Y>")
    for sequence, action in bound.items():
        window.bind(sequence, lambda _event, action=action: _do(action))  # type: ignore[misc]
        for kind in ("TEntry", "TCombobox", "Text"):  # their own meanings of these keys give way
            if sequence in window.bind_class(kind):
                window.unbind_class(kind, sequence)
    for sequence, step in (("<Prior>", -1), ("<Next>", 1)):
        window.bind(sequence, lambda event, step=step: _page(window, event, step))  # type: ignore[misc]


def _do(action: Callable[[], object]) -> str:
    action()
    return "break"


def _turn(window: MainWindow, step: int) -> None:
    keys = [page.key for page in window.pages]
    window.show_page(keys[(keys.index(window.page) + step) % len(keys)])


def _page(window: MainWindow, event: tk.Event[tk.Misc], step: int) -> None:
    if isinstance(event.widget, tk.Misc) and event.widget.winfo_class() in ("Text", "Listbox", "Treeview"):
        return
    frames = [child for child in window.current_page().winfo_children() if isinstance(child, ScrollFrame)]
    if frames:
        frames[0].page(step)
