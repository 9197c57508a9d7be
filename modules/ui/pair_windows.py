"""Opens the pair tool from the main window, so that finished pairs can be trained on immediately."""

from __future__ import annotations

import tkinter as tk
from pathlib import Path
from weakref import WeakSet

from modules.ui.state.pairs_to_train import train_on_pairs
from modules.ui.texts import rlhf as words
from modules.ui.Ui import Ui


def open_pair_tool_here(ui: Ui, source: Path | None = None) -> tk.Toplevel:
    """Open the pair tool in a window of its own, or return one that is still at its start page.

    Args:
        source: initial folder with images; empty for the last one used.
    """
    from modules.ui.curation.DPOCurationWindow import DPOCurationWindow
    from modules.ui.curation.windows import open_pair_tool

    for window in ui.root.winfo_children() if source is None else ():
        if isinstance(window, tk.Toplevel) and window in _OPENED and any(
            isinstance(tool, DPOCurationWindow) and tool.at_start for tool in window.winfo_children()
        ):
            window.deiconify()  # it may be minimised
            window.lift()
            window.focus_force()
            return window

    def train(folder: Path) -> None:
        with ui.errors_shown():
            train_on_pairs(ui.state, folder)
            ui.services.show_page("rlhf")
            ui.root.lift()
            ui.root.focus_force()
            ui.status(words.READY.format(folder=folder))

    made = open_pair_tool(ui.root, ui.theme, source, ui.services.store.folder, train)
    _OPENED.add(made)
    return made


_OPENED: WeakSet[tk.Toplevel] = WeakSet()
"""The windows opened here, and not those of a project or the demo, which choose into folders of their own."""
