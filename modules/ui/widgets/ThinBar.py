"""A thin progress bar."""

from __future__ import annotations

import tkinter as tk

from modules.ui.widgets.theme import Theme


class ThinBar(tk.Frame):
    """Shows a share between 0 and 1.

    Args:
        width: in pixels; 0 takes the available width.
    """

    def __init__(self, parent: tk.Misc, theme: Theme, width: int = 0) -> None:
        super().__init__(parent, height=theme.px(5), width=width, takefocus=0)
        self._line = tk.Frame(self)
        self._theme = theme
        theme.on_change(self._restyle, self)

    def _restyle(self) -> None:
        self.configure(height=self._theme.px(5), background=self._theme.palette.border)
        self._line.configure(background=self._theme.palette.accent)

    def show(self, share: float) -> None:
        """Fill up to a share, clamped to 0 to 1."""
        self._line.place(x=0, y=0, relheight=1.0, relwidth=min(1.0, max(0.0, share)))
