"""A row of widgets that wraps when the window is too narrow."""

from __future__ import annotations

import tkinter as tk
from tkinter import ttk

from modules.ui.widgets.theme import Theme


class ActionRow(ttk.Frame):
    """Lays out its children left to right in rows, each at its natural width.

    Args:
        gap: pixels between children at 100 %.
    """

    def __init__(self, parent: tk.Misc, theme: Theme, gap: int = 6, style: str = "TFrame") -> None:
        super().__init__(parent, height=theme.px(30), style=style)
        self._theme = theme
        self._gap = gap
        self._flowing: list[tk.Widget] = []
        self._laid: tuple[int, ...] = ()
        self.bind("<Configure>", lambda _event: self.flow())

    def add(self, *children: tk.Widget) -> None:
        """Append children of this frame."""
        for child in children:
            self._flowing.append(child)
            child.bind("<Configure>", lambda _event: self.flow(), add="+")
        self.flow()

    def clear(self) -> None:
        """Destroy all children."""
        for child in self._flowing:
            child.destroy()
        self._flowing = []
        self._laid = ()

    def flow(self) -> None:
        """Lay out again if any size has changed."""
        if not self.winfo_exists():
            return
        width, gap = self.winfo_width(), self._theme.px(self._gap)
        sizes = [(child.winfo_reqwidth(), child.winfo_reqheight()) for child in self._flowing]
        laid = (width, gap, *(n for size in sizes for n in size))
        if width <= 1 or laid == self._laid or not sizes:
            return
        self._laid = laid
        x = y = row = 0
        for child, (wide, high) in zip(self._flowing, sizes, strict=True):
            if x and x + wide > width:
                x, y, row = 0, y + row + gap, 0
            child.place(x=x, y=y)
            x, row = x + wide + gap, max(row, high)
        self.configure(height=y + row)
