"""The list of pages on the left."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from functools import partial
from tkinter import ttk

from modules.ui.pages.PageSpec import PageSpec
from modules.ui.texts import window as words
from modules.ui.Ui import Ui
from modules.ui.widgets.tk_support import on_event


class SideBar(ttk.Frame):
    """A button for each page, with settings pages under a heading. Up and Down move between them.

    Args:
        show: called with the key of the selected page.
    """

    def __init__(
        self, parent: tk.Misc, ui: Ui, pages: tuple[PageSpec, ...], show: Callable[[str], None]
    ) -> None:
        px = ui.theme.px
        super().__init__(parent, padding=(px(8), px(4)))
        self.buttons: dict[str, ttk.Button] = {}
        self._theme = ui.theme
        self._titles = {page.key: page.title for page in pages}
        number, settings = 0, False
        for place, page in enumerate(pages):
            if bool(page.sections) is not settings:
                settings = not settings
                self._heading(words.ALL_SETTINGS if settings else "")
            button = ttk.Button(self, text=page.title, style="Side.TButton", command=partial(show, page.key))
            button.pack(fill="x", pady=1)
            button.bind("<Down>", on_event(self._focus, place + 1))
            button.bind("<Up>", on_event(self._focus, place - 1))
            number += not page.key_name
            key = page.key_name or (f"Ctrl+{number % 10}" if number <= 10 else "")
            ui.services.tooltips.add(button, f"{page.about}  {key}".strip())
            self.buttons[page.key] = button

    def _heading(self, text: str) -> None:
        px = self._theme.px
        label = ttk.Label(
            self, text=text, style="Small.TLabel", padding=(px(10), px(6) if text else 0, 0, px(1))
        )
        label.pack(fill="x")

    def widest(self) -> int:
        """Width in pixels that fits every button, selected and with a number of problems."""
        measure, px = self._theme.fonts["bold"].measure, self._theme.px
        return (
            max(measure(f"{title}  (88)") for title in self._titles.values()) + px(10) * 2 + px(8) * 2 + px(8)
        )

    def _focus(self, index: int) -> str:
        buttons = list(self.buttons.values())
        buttons[index % len(buttons)].focus_set()
        return "break"

    def select(self, key: str) -> None:
        """Show which page is open."""
        for name, button in self.buttons.items():
            button.configure(style="SideOn.TButton" if name == key else "Side.TButton")

    def mark(self, faults: dict[str, int]) -> None:
        """Show the number of problems of each page."""
        for key, button in self.buttons.items():
            count = faults.get(key, 0)
            button.configure(text=self._titles[key] + (f"  ({count})" if count else ""))
