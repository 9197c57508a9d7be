"""The bar above the pages: preset, files, undo, search, appearance and scale."""

from __future__ import annotations

import tkinter as tk
from functools import partial
from pathlib import Path
from tkinter import ttk

from modules.ui.Actions import Actions
from modules.ui.shell.FileActions import FileActions
from modules.ui.shell.PresetMenu import PresetMenu
from modules.ui.shell.SearchBox import SearchBox
from modules.ui.texts import window as words
from modules.ui.Ui import Ui
from modules.ui.widgets.theme import style_menu
from modules.ui.widgets.tk_support import elide_middle


class TopBar(ttk.Frame):
    """Buttons for the actions of the window. Most have keys too.

    Args:
        actions: actions of its buttons and menu.
        files: has the presets and the config files opened last.
    """

    def __init__(self, parent: tk.Misc, ui: Ui, actions: Actions, files: FileActions) -> None:
        px = ui.theme.px
        super().__init__(parent, padding=(px(10), px(8)))
        self._ui, self._actions, self._files = ui, actions, files
        self.preset = PresetMenu(self, ui, files)
        self.preset.grid(row=0, column=0, sticky="ew")
        tips = ui.services.tooltips
        tips.add(self.preset, lambda: "\n".join(filter(None, (self.preset.chosen, words.PRESET_TIP))))
        self.file = ttk.Menubutton(self, text=words.FILE)
        self._menu = tk.Menu(self.file, tearoff=False, postcommand=self._fill_menu)
        self.file.configure(menu=self._menu)
        self.file.grid(row=0, column=1, padx=(px(8), 0))
        self.buttons: dict[str, ttk.Button] = {}
        for column, (name, label, command, tip) in enumerate(
            (
                ("save", words.SAVE, actions.save, words.SAVE_TIP),
                ("undo", "\u21b6", actions.undo, words.UNDO_TIP),
                ("redo", "\u21b7", actions.redo, words.REDO_TIP),
            ),
            2,
        ):
            button = ttk.Button(self, text=label, command=command, width=max(3, len(label) + 1))
            button.grid(row=0, column=column, padx=(px(4), 0))
            tips.add(button, tip)
            self.buttons[name] = button
        self.search = SearchBox(self, ui)
        self.search.grid(row=0, column=5, sticky="ew", padx=px(12))
        self.columnconfigure(0, weight=1)
        self.columnconfigure(5, weight=4, minsize=2 * px(12) + px(60))  # room for a short word at any size
        self.view = ttk.Button(self, text=words.VIEW, command=actions.view, width=7)
        self.view.grid(row=0, column=6)
        tips.add(self.view, words.VIEW_TIP)

    def _fill_menu(self) -> None:
        menu, actions = self._menu, self._actions
        menu.delete(0, "end")
        style_menu(self._ui.theme, menu)
        for label, command, key in (
            (words.MENU_NEW, actions.new, "Ctrl+N"),
            (words.MENU_OPEN, actions.load, "Ctrl+O"),
            (words.SAVE, actions.save, "Ctrl+S"),
            (words.MENU_SAVE_AS, actions.save_as, "Ctrl+Shift+S"),
            (words.MENU_IMPORT, actions.import_, "Ctrl+I"),
        ):
            menu.add_command(label=label, command=command, accelerator=key)
        recent = self._files.recent
        if recent:
            menu.add_separator()
        for name in recent:
            menu.add_command(label=elide_middle(name, 60), command=partial(self._files.load, Path(name)))
        menu.add_separator()
        menu.add_command(label=words.MENU_QUIT, command=actions.quit, accelerator="Ctrl+Q")

    def show_undo(self, undo: bool, redo: bool) -> None:
        """Enable the buttons for which there is something to undo or redo."""
        self.buttons["undo"].state([("!" if undo else "") + "disabled"])
        self.buttons["redo"].state([("!" if redo else "") + "disabled"])
