"""The tags of a folder and how many captions have each."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from tkinter import ttk

from modules.ui.texts import captions as words
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.tk_support import bind_row_keys, show_in_grid

MOST = 500
"""Maximum number of rows; captions written as sentences yield thousands of different parts."""


class TagTable(ttk.Frame):
    """A list of tags, the most frequent first.

    Args:
        picked: called with the selected tag.
        opened: called with the tag whose images should be shown.
    """

    def __init__(
        self, parent: tk.Misc, theme: Theme, picked: Callable[[str], None], opened: Callable[[str], None]
    ) -> None:
        super().__init__(parent)
        self.columnconfigure(0, weight=1)
        self.rowconfigure(0, weight=1)
        self._tags: Sequence[tuple[str, int]] = ()
        self._picked, self._opened = picked, opened
        self._last: str | None = None
        self.table = ttk.Treeview(
            self, columns=("tag", "count"), show="headings", height=3, selectmode="browse"
        )
        self.table.heading("tag", text=words.TAG_COLUMN, anchor="w")
        self.table.heading("count", text=words.COUNT_COLUMN, anchor="e")
        self.table.column("tag", width=theme.px(190), anchor="w")
        self.table.column("count", width=theme.px(80), anchor="e", stretch=False)
        self.table.grid(row=0, column=0, sticky="nsew")
        bar = ttk.Scrollbar(self, command=self.table.yview)
        bar.grid(row=0, column=1, sticky="ns")
        self.table.configure(yscrollcommand=bar.set)
        self._more = ttk.Label(self, style="Small.TLabel")
        self._more.grid(row=1, column=0, sticky="w")
        self._more.grid_remove()
        self.table.bind("<<TreeviewSelect>>", lambda _event: self._pick())
        bind_row_keys(self.table)
        for event in ("<Double-Button-1>", "<Return>", "<KP_Enter>"):
            self.table.bind(event, lambda _event: self._open())

    def show(self, tags: Sequence[tuple[str, int]]) -> None:
        """Show tags with their counts."""
        if tags == self._tags:
            return
        chosen = self.tag
        self._tags = tags
        self.table.delete(*self.table.get_children())
        for number, (tag, count) in enumerate(tags[:MOST]):
            self.table.insert("", "end", iid=str(number), values=(tag, f"{count:,}"))
            if tag == chosen:
                self.table.selection_set(str(number))
                self.table.focus(str(number))
        more = len(tags) - MOST
        self._more.configure(text=words.MORE_TAGS.format(count=more))
        show_in_grid(self._more, more > 0)

    @property
    def tag(self) -> str | None:
        """The selected tag."""
        chosen = self.table.selection()
        return self._tags[int(chosen[0])][0] if chosen else None

    def _pick(self) -> None:
        """Handle the selection of a tag. After new counts, the same tag is selected again."""
        tag = self.tag
        if tag is not None and tag != self._last:
            self._last = tag
            self._picked(tag)

    def _open(self) -> None:
        if self.tag is not None:
            self._opened(self.tag)
