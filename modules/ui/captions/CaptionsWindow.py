"""The caption editor in a window of its own."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from pathlib import Path

from modules.ui.captions.CaptionsPage import CaptionsPage
from modules.ui.texts import captions as words
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.ToolHost import ToolHost


class CaptionsWindow(ToolHost):
    """Edits the captions of one folder.

    Args:
        root: the folder with the images.
        subfolders: include the images of its subfolders.
    """

    name = words.TITLE

    def __init__(
        self,
        window: tk.Tk | tk.Toplevel,
        theme: Theme,
        root: Path,
        closed: Callable[[], None],
        subfolders: bool = False,
    ) -> None:
        super().__init__(window, theme, closed)
        self.editor = CaptionsPage(self, theme, self.worker, self.prefetcher, root, self.close, subfolders)
        self.show(self.editor, root.resolve().name)
        self.editor.open()

    def prepare_close(self, then: Callable[[], None]) -> None:
        self.editor.finish(then, self.stay)
