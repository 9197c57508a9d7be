"""A row of widgets that wraps to the next line when there is no more room."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from tkinter import ttk

from modules.ui.widgets.tk_support import IDLE, Timer


class FlowFrame(ttk.Frame):
    """Create widgets in it, then ``add`` them in order. Pack or grid the frame so that it gets all the width.

    Args:
        gap: pixels between widgets.
    """

    def __init__(self, parent: tk.Misc, gap: int, style: str = "TFrame") -> None:
        super().__init__(parent, style=style, height=1, width=1)
        self._gap = gap
        self._members: list[tk.Widget] = []
        self._arranging = Timer(self, IDLE, self._arrange)
        self.bind("<Configure>", lambda _event: self._arranging.start())

    def add(self, *widgets: tk.Widget) -> None:
        """Append widgets."""
        for widget in widgets:
            self._members.append(widget)
            widget.bind("<Configure>", lambda _event: self._arranging.start(), add="+")
        self._arranging.start()

    def add_button(self, text: str, command: Callable[[], object], style: str = "TButton") -> ttk.Button:
        """Append a button that Return presses too."""
        button = ttk.Button(self, text=text, command=command, style=style)
        button.bind("<Return>", lambda _event: button.invoke())
        self.add(button)
        return button

    def clear(self) -> None:
        """Destroy all widgets in it."""
        for widget in self._members:
            widget.destroy()
        self._members = []

    def _arrange(self) -> None:
        if not self._members:
            return
        width = self.winfo_width() if self.winfo_width() > 1 else 1 << 15
        lines: list[list[tk.Widget]] = [[]]
        used = 0
        for widget in self._members:
            need = widget.winfo_reqwidth() + self._gap
            if lines[-1] and used + need - self._gap > width:
                lines.append([])
                used = 0
            lines[-1].append(widget)
            used += need
        top = 0
        for line in lines:
            high = max(widget.winfo_reqheight() for widget in line)
            left = 0
            for widget in line:
                widget.place(x=left, y=top + (high - widget.winfo_reqheight()) // 2)
                left += widget.winfo_reqwidth() + self._gap
            top += high + self._gap
        if self.winfo_reqheight() != top - self._gap:
            self.configure(height=top - self._gap)
