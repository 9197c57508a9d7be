"""The prompts that gave no pair. Each can be opened again."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from tkinter import ttk

from modules.curation.ImageGroup import ImageGroup
from modules.ui.texts import export as words
from modules.ui.widgets.theme import Theme, style_text
from modules.ui.widgets.tk_support import chosen_line
from modules.util.display import counted

MOST_ROWS = 8


class PassedPrompts(ttk.Frame):
    """A list with a button.

    Args:
        open_prompt: gets the key of the group to show again.
    """

    def __init__(
        self,
        parent: tk.Misc,
        theme: Theme,
        groups: Sequence[ImageGroup],
        open_prompt: Callable[[str], None],
    ) -> None:
        super().__init__(parent)
        self._groups = groups
        self._open_prompt = open_prompt
        self.columnconfigure(0, weight=1)
        self.list = tk.Listbox(self, height=min(MOST_ROWS, len(groups)), activestyle="none", borderwidth=0)
        style_text(theme, self.list)
        for group in groups:
            images = counted(len(group.files), words.IMAGE)
            line = words.PASSED_PROMPT.format(prompt=group.prompt, shape=group.aspectratio, images=images)
            self.list.insert("end", line)
        self.list.selection_set(0)
        self.list.grid(row=0, column=0, sticky="ew")
        self.open = ttk.Button(self, text=words.OPEN_PROMPT, command=self._chosen)
        self.open.grid(row=1, column=0, sticky="w", pady=(theme.px(8), 0))
        for widget in (self.list, self.open):
            widget.bind("<Return>", lambda _event: self._chosen())
        self.list.bind("<Double-Button-1>", lambda _event: self._chosen())

    def _chosen(self) -> str:
        chosen = chosen_line(self.list)
        if chosen is not None:
            self._open_prompt(self._groups[chosen].key)
        return "break"
