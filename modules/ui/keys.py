"""The keys of the main window."""

from __future__ import annotations

import tkinter as tk
from functools import partial

from modules.ui.Actions import Action, Actions

SCROLL_THEMSELVES = ("Text", "Listbox", "Treeview")


def bind_keys(window: tk.Tk, actions: Actions) -> None:
    """Bind all keys."""
    zoom, order, turn = actions.zoom, actions.order, actions.turn_page
    bound: dict[str, Action] = {
        "<Control-f>": actions.search,
        "<Control-n>": actions.new,
        "<Control-o>": actions.load,
        "<Control-s>": actions.save,
        "<Control-S>": actions.save_as,
        "<Control-i>": actions.import_,
        "<Control-z>": actions.undo,
        "<Control-y>": actions.redo,
        "<Control-Z>": actions.redo,
        "<Control-q>": actions.quit,
        "<Control-plus>": partial(zoom, 1),
        "<Control-equal>": partial(zoom, 1),
        "<Control-KP_Add>": partial(zoom, 1),
        "<Control-minus>": partial(zoom, -1),
        "<Control-KP_Subtract>": partial(zoom, -1),
        "<Control-KP_0>": partial(zoom, 0),
        "<Control-Tab>": partial(turn, 1),
        "<Control-Shift-Tab>": partial(turn, -1),
        "<F4>": actions.toggle_problems,
        "<F5>": actions.start,
        "<Shift-F5>": partial(order, "stop"),
        "<F6>": actions.pause_or_resume,
        "<F7>": partial(order, "backup"),
        "<F8>": partial(order, "sample"),
    }
    if window.tk.call("tk", "windowingsystem") == "x11":
        bound["<Control-ISO_Left_Tab>"] = partial(turn, -1)
    for number, show in enumerate(actions.show_pages[:10], 1):
        bound[f"<Control-Key-{number % 10}>"] = show
    bound |= {f"<{key}>": show for key, show in actions.show_by_key.items()}
    # on X11 Ctrl+Y also means paste, which would be an edit and leave nothing to redo
    window.event_delete("<<Paste>>", "<Control-Key-y>", "<Control-Lock-Key-Y>")
    for sequence, action in bound.items():
        window.bind(sequence, partial(_do, action))
        for kind in ("TEntry", "TCombobox", "Text"):  # these replace the default bindings of the keys
            if sequence in window.bind_class(kind):
                window.unbind_class(kind, sequence)
    for sequence, step in (("<Prior>", -1), ("<Next>", 1)):
        window.bind(sequence, partial(_scroll, actions, step))


def _do(action: Action, _event: object) -> str:
    action()
    return "break"


def _scroll(actions: Actions, step: int, event: tk.Event[tk.Misc]) -> None:
    if isinstance(event.widget, tk.Misc) and event.widget.winfo_class() in SCROLL_THEMSELVES:
        return
    actions.scroll(step)
