"""Bulk changes of captions."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from tkinter import ttk

from modules.tools.dataset.tags import Edit, adding, deleting, replacing_tag, replacing_text
from modules.ui.texts import captions as words
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.theme import Theme
from modules.util.display import counted
from modules.util.errors import UserError


class ChangePanel(ttk.Frame):
    """Asks what to replace, add or delete.

    Args:
        change: called with an edit of captions.
        refused: called with what is wrong with the input.
        scope: called when the choice between selected and shown images changes.
    """

    def __init__(
        self,
        parent: tk.Misc,
        theme: Theme,
        change: Callable[[Edit], None],
        refused: Callable[[str], None],
        scope: Callable[[], None],
    ) -> None:
        super().__init__(parent)
        px = theme.px
        self._theme, self._change, self._refused = theme, change, refused
        self._all, self._whole = tk.BooleanVar(self, False), tk.BooleanVar(self, False)
        self.columnconfigure(1, weight=1)
        head = ttk.Frame(self)
        head.grid(row=0, column=0, columnspan=2, sticky="ew", pady=(0, px(4)))
        self._title = ttk.Label(head, style="Bold.TLabel")
        self._title.pack(side="left")
        self.all_shown = ttk.Checkbutton(head, text=words.ALL_SHOWN, variable=self._all, command=scope)
        self.all_shown.pack(side="right")
        self.old, self.new = self._entry(1, words.OLD), self._entry(2, words.NEW)
        row = ttk.Frame(self)
        row.grid(row=3, column=1, sticky="ew", pady=(px(2), px(6)))
        self.replace_button = ttk.Button(row, text=words.REPLACE, command=self.replace, style="Small.TButton")
        self.replace_button.pack(side="left")
        self.whole = ttk.Checkbutton(row, text=words.WHOLE_TAGS, variable=self._whole)
        self.whole.pack(side="left", padx=(px(10), 0))
        self.tag = self._entry(4, words.TAG)
        row_of_tags = FlowFrame(self, theme.px(6))
        row_of_tags.grid(row=5, column=0, columnspan=2, sticky="ew", pady=(px(2), 0))
        self.buttons = [
            ttk.Button(row_of_tags, text=text, style="Small.TButton", command=command)
            for text, command in (
                (words.ADD_FRONT, lambda: self._try(lambda: adding(self.tag.get(), at_end=False))),
                (words.ADD_END, lambda: self._try(lambda: adding(self.tag.get(), at_end=True))),
                (words.DELETE, lambda: self._try(lambda: deleting(self.tag.get()))),
            )
        ]
        row_of_tags.add(*self.buttons)
        for entry in (self.old, self.new):
            entry.bind("<Return>", lambda _event: self.replace())

    def _entry(self, row: int, title: str) -> ttk.Entry:
        px = self._theme.px
        ttk.Label(self, text=title).grid(row=row, column=0, sticky="w", padx=(0, px(8)))
        entry = ttk.Entry(self, font=self._theme.fonts["text"], width=12)
        entry.grid(row=row, column=1, sticky="ew", pady=px(2))
        return entry

    @property
    def means_all(self) -> bool:
        """True if the change applies to all images shown instead of the selected ones."""
        return self._all.get()

    def count(self, images: int) -> None:
        """Show how many images would change."""
        self._title.configure(text=words.CHANGE.format(images=counted(images, words.IMAGE)))

    def fill(self, tag: str) -> None:
        """Put a tag into the fields."""
        for entry in (self.old, self.tag):
            entry.delete(0, "end")
            entry.insert(0, tag)
        self._whole.set(True)

    def enable(self, on: bool) -> None:
        """Enable the buttons, or disable them while a change is running."""
        for button in (self.replace_button, *self.buttons):
            button.state(["!disabled"] if on else ["disabled"])

    def replace(self) -> None:
        """Replace the text in the fields."""
        if not self.replace_button.instate(["disabled"]):
            make = replacing_tag if self._whole.get() else replacing_text
            self._try(lambda: make(self.old.get(), self.new.get()))

    def _try(self, make: Callable[[], Edit]) -> None:
        try:
            edit = make()
        except UserError as error:
            self._refused(f"{error.message}. {error.hint or ''}".strip())
            return
        self._change(edit)
