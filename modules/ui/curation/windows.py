"""Opens the pair tool and the review, as a program or from another window."""

from __future__ import annotations

import argparse
import logging
import tkinter as tk
from collections.abc import Callable, Sequence
from pathlib import Path

from modules.ui.curation.DPOCurationWindow import DPOCurationWindow
from modules.ui.curation.PairController import PickingOptions
from modules.ui.curation.StartPage import Looks
from modules.ui.review.DPOReviewWindow import DPOReviewWindow
from modules.ui.shell.tool_windows import new_window, program_window
from modules.ui.state.SessionStore import SessionStore
from modules.ui.texts import start as words
from modules.ui.widgets.drop import load_drops
from modules.ui.widgets.theme import Theme
from modules.util.files.user_folder import settings_folder


def open_pair_tool(
    parent: tk.Misc,
    theme: Theme,
    source: Path | None = None,
    settings: Path | None = None,
    train: Callable[[Path], None] | None = None,
    options: PickingOptions | None = None,
) -> tk.Toplevel:
    """Open the pair tool in a window of its own.

    Args:
        source: initial folder with images.
        settings: folder in which the fields are saved.
        train: sets up training on the pairs of a folder; without it, the tool has no such button.
        options: start picking with these immediately, without the start page.
    """
    window = new_window(parent, theme)
    tool = DPOCurationWindow(window, theme, settings or settings_folder(), window.destroy, train=train)
    tool.pack(fill="both", expand=True)
    if options is None:
        _begin(tool, source)
    else:
        tool.start(options)
    return window


def open_review(parent: tk.Misc, theme: Theme, output: Path, resolution: int) -> tk.Toplevel:
    """Open the review of a folder of pairs in a window of its own.

    Args:
        resolution: the training resolution whose crop buckets are compared.
    """
    window = new_window(parent, theme)
    tool = DPOReviewWindow(window, theme, output, window.destroy, resolution)
    tool.pack(fill="both", expand=True)
    return window


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pair tool as a program of its own. Return when its window is closed."""
    parser = argparse.ArgumentParser(prog="train_ui.py --pair-tool", description=words.ABOUT_PROGRAM)
    parser.add_argument("--pair-tool", nargs="?", metavar="SOURCE", type=Path, help="folder with images")
    parser.add_argument("--pairs-folder", type=Path, metavar="FOLDER", help="folder for the pairs")
    parser.add_argument("--settings-dir", type=Path, help="folder of the program's own settings")
    options = parser.parse_args(arguments)
    if options.pair_tool is not None and not options.pair_tool.is_dir():
        parser.error(f"the folder {options.pair_tool} does not exist")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    store = SessionStore(options.settings_dir or settings_folder())
    root = make_window(store, options.pair_tool, options.pairs_folder)
    root.mainloop()
    return 0


def make_window(store: SessionStore, source: Path | None, output: Path | None = None) -> tk.Tk:
    """Make the window of the program, with the pair tool in it."""
    memory, _ = store.load_window()
    root, theme = program_window(memory.appearance, memory.scale)
    load_drops(root)
    tool = DPOCurationWindow(root, theme, store.folder, root.destroy, Looks(theme, store, memory))
    tool.pack(fill="both", expand=True)
    _begin(tool, source, output)
    root.deiconify()
    return root


def _begin(tool: DPOCurationWindow, source: Path | None, output: Path | None = None) -> None:
    if source is not None:
        tool.memory.source = str(source.absolute())
        tool.memory.output = "" if output is None else str(output.absolute())
    tool.show_start()
