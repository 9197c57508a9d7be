"""The search bar at the top of the caption editor."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from tkinter import ttk

from modules.ui.form.inputs import choice_box
from modules.ui.texts import captions as words
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.theme import Theme
from modules.ui.widgets.tk_support import Timer

DELAY_MS = 150


class FindBar(ttk.Frame):
    """Searches while the person types.

    Args:
        look: called with the kind of search (``words.FIND_BY``) and the search text.
        masks: called when masks are switched on or off.
        paint: opens the mask of the image at the cursor.
        keys: shows the keys.
    """

    def __init__(
        self,
        parent: tk.Misc,
        theme: Theme,
        look: Callable[[str, str], None],
        masks: Callable[[bool], None],
        paint: Callable[[], None],
        keys: Callable[[], None],
    ) -> None:
        px = theme.px
        super().__init__(parent, padding=(px(10), px(6)))
        self._look = look
        self._typing = Timer(self, DELAY_MS, self._changed)
        self._last = (words.BY_TEXT, "")
        self._masks = tk.BooleanVar(self, True)
        row = FlowFrame(self, px(8))
        row.pack(fill="x", expand=True)
        font = theme.fonts["text"]
        self.by = choice_box(row, theme, words.FIND_BY, 15)
        self.by.set(words.BY_TEXT)
        self.entry = ttk.Entry(row, width=28, font=font)
        self.show_all = ttk.Button(row, text=words.SHOW_ALL, command=self._show_all)
        self.masks = ttk.Checkbutton(
            row, text=words.MASKS, variable=self._masks, command=lambda: masks(self._masks.get())
        )
        self.paint = ttk.Button(row, text=words.PAINT, command=paint)
        help_button = ttk.Button(row, text=words.KEYS_BUTTON, command=keys)
        self._place = ttk.Label(row, style="Muted.TLabel")
        title = ttk.Label(row, text=words.FIND)
        for widget in (
            title, self.by, self.entry, self.show_all, self.masks, self.paint, help_button, self._place,
        ):  # fmt: skip
            row.add(widget)
        self.by.bind("<<ComboboxSelected>>", lambda _event: self._now())
        self.entry.bind("<KeyRelease>", lambda _event: self._typing.restart())
        self.entry.bind("<Return>", lambda _event: self._leave())
        self.entry.bind("<Escape>", lambda _event: self._leave())
        self.by.bind("<Escape>", lambda _event: self._leave())

    def say(self, text: str) -> None:
        """Show how many images were found."""
        self._place.configure(text=text)

    def focus(self) -> None:
        """Focus the search field."""
        if self.by.get() == words.WITHOUT:
            self.by.set(words.BY_TEXT)
        self.entry.focus_set()
        self.entry.select_range(0, "end")

    def by_tag(self, tag: str) -> None:
        """Search for a tag."""
        self.by.set(words.BY_TAG)
        self._write(tag)
        self._now()

    def clear(self) -> None:
        """Clear the search without starting a new one."""
        self.by.set(words.BY_TEXT)
        self._write("")
        self._last = (words.BY_TEXT, "")

    def toggle_masks(self) -> None:
        """Switch the masks on or off."""
        self.masks.invoke()

    def _write(self, text: str) -> None:
        self.entry.delete(0, "end")
        self.entry.insert(0, text)

    def _show_all(self) -> None:
        self.clear()
        self._look(*self._last)

    def _changed(self) -> None:
        self._typing.stop()
        if (self.by.get(), self.entry.get()) != self._last:
            self._now()

    def _now(self) -> None:
        self._last = (self.by.get(), self.entry.get())
        self._look(*self._last)

    def _leave(self) -> str:
        self._changed()
        self.winfo_toplevel().focus_set()
        return "break"
