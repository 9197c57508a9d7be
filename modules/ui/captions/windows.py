"""Opens the caption editor, as a program or from another window."""

from __future__ import annotations

import argparse
import logging
import tkinter as tk
from collections.abc import Sequence
from pathlib import Path

from modules.ui.captions.CaptionsWindow import CaptionsWindow
from modules.ui.shell.tool_windows import new_window, program_window
from modules.ui.state.SessionStore import SessionStore
from modules.ui.texts import captions as words
from modules.ui.widgets.theme import Theme
from modules.util.files.user_folder import settings_folder


def open_captions(parent: tk.Misc, theme: Theme, root: Path) -> tk.Toplevel:
    """Open the editor for a folder in a window of its own."""
    window = new_window(parent, theme)
    CaptionsWindow(window, theme, root, window.destroy).pack(fill="both", expand=True)
    return window


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the editor as a program. Return when its window is closed."""
    parser = argparse.ArgumentParser(prog="caption_editor.py", description=words.ABOUT_PROGRAM)
    parser.add_argument("folder", type=Path, help="the folder with the images")
    parser.add_argument("--subfolders", action="store_true", help="show the images in subfolders too")
    parser.add_argument("--settings-dir", type=Path, help="folder of the program's own settings")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"the folder {options.folder} does not exist")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    memory, _ = SessionStore(options.settings_dir or settings_folder()).load_window()
    root, theme = program_window(memory.appearance, memory.scale)
    tool = CaptionsWindow(root, theme, options.folder, root.destroy, options.subfolders)
    tool.pack(fill="both", expand=True)
    root.deiconify()
    root.mainloop()
    return 0
