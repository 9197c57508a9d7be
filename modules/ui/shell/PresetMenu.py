"""The presets as a menu: the person's own, those of the demo, and one submenu per family."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from functools import partial
from tkinter import ttk

from modules.ui.shell.FileActions import FileActions
from modules.ui.state.PresetStore import Preset
from modules.ui.texts import window as words
from modules.ui.Ui import Ui
from modules.ui.widgets.theme import style_menu
from modules.ui.widgets.tk_support import elide_middle

MOST_IN_A_MENU = 12
"""Own presets beyond this number get a submenu, because menus do not scroll everywhere."""
MOST_IN_A_COLUMN = 20
LONGEST, LONGEST_SHOWN = 48, 28


class PresetMenu(ttk.Menubutton):
    """Opens with a click, Space or Down. The entries are read each time.

    Args:
        files: has the presets, and does what the entries say.
    """

    def __init__(self, parent: tk.Misc, ui: Ui, files: FileActions) -> None:
        super().__init__(parent, width=20)
        self.chosen = ""
        self._show(words.NO_PRESET)
        self._ui, self._files = ui, files
        self.menu = tk.Menu(self, tearoff=False, postcommand=self._fill)
        self.configure(menu=self.menu)
        self.bind("<Down>", lambda _event: self._open())
        self.bind("<Return>", lambda _event: self._open())

    def _open(self) -> str:
        self.tk.call("ttk::menubutton::Popdown", str(self))
        return "break"

    def _show(self, label: str) -> None:
        self.configure(text=f"{elide_middle(label, LONGEST_SHOWN)} \u25be")

    def _fill(self) -> None:
        menu = self.menu
        menu.delete(0, "end")
        for child in menu.winfo_children():
            child.destroy()
        style_menu(self._ui.theme, menu)
        found = self._files.presets.presets()
        own = [preset for preset in found if not preset.built_in and not preset.family]
        alone = [preset for preset in found if preset.built_in and not preset.family]
        if len(own) > MOST_IN_A_MENU:
            self._submenu(words.YOUR_PRESETS, own)
        else:
            self._entries(menu, own)
        if own and len(own) < len(found):
            menu.add_separator()
        self._entries(menu, alone)
        for family in sorted({preset.family for preset in found if preset.family}, key=str.lower):
            self._submenu(family, [preset for preset in found if preset.family == family])
        if found:
            menu.add_separator()
        menu.add_command(label=words.KEEP_PRESET, command=self._files.keep_preset)
        menu.add_command(label=words.REMOVE_PRESET, command=self._files.remove_preset)

    def _submenu(self, title: str, presets: Sequence[Preset]) -> None:
        menu = tk.Menu(self.menu, tearoff=False)
        style_menu(self._ui.theme, menu)
        self._entries(menu, presets)
        self.menu.add_cascade(label=elide_middle(title, LONGEST), menu=menu)

    def _entries(self, menu: tk.Menu, presets: Sequence[Preset]) -> None:
        for index, preset in enumerate(presets):
            mark = "# " if preset.built_in else ""
            menu.add_command(
                label=elide_middle(mark + preset.name, LONGEST),
                command=partial(self._chosen, preset),
                columnbreak=index > 0 and index % MOST_IN_A_COLUMN == 0,
            )

    def _chosen(self, preset: Preset) -> None:
        if self._files.apply_preset(preset):
            self.chosen = preset.label
            self._show(preset.label)
