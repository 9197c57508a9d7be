"""A row of widgets that can be emptied and filled again."""

from __future__ import annotations

import tkinter as tk

from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.theme import Theme


class ActionRow(FlowFrame):
    """Lays out its children left to right in rows, each at its natural width.

    Args:
        gap: pixels between children at 100 %.
    """

    def __init__(self, parent: tk.Misc, theme: Theme, gap: int = 6, style: str = "TFrame") -> None:
        super().__init__(parent, theme.px(gap), style)

    def clear(self) -> None:
        """Destroy all children."""
        for child in self._members:
            child.destroy()
        self._members = []
