"""The base class of all pages of the main window."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Iterable, Mapping
from tkinter import ttk

from modules.ui.pages.PageSpec import PageSpec
from modules.ui.state.ConfigState import Problem
from modules.ui.Ui import Ui
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.ScrollFrame import ScrollFrame


class Page(ttk.Frame):
    """A page. It is built when first opened and notified of changes from then on.

    Args:
        parent: the middle of the window.
        spec: its entry in the sidebar.
    """

    def __init__(self, parent: tk.Misc, ui: Ui, spec: PageSpec) -> None:
        super().__init__(parent, style="Back.TFrame")
        self.ui = ui
        self.spec = spec
        self.showing = False
        """True if the page is in front; set by the window (it may not be drawn yet)."""

    def add_head(self, parent: tk.Misc) -> FlowFrame:
        """Add the title and explanation."""
        px = self.ui.theme.px
        head = FlowFrame(parent, px(14), style="Back.TFrame")
        head.pack(fill="x", padx=px(14), pady=(px(12), px(8)))
        head.add(ttk.Label(head, text=self.spec.title, style="Title.TLabel"))
        head.add(ttk.Label(head, text=self.spec.about, style="Back.TLabel"))
        return head

    def scroll_by(self, screens: int) -> None:
        """Scroll a screen down (1) or up (-1), if the page scrolls."""
        for child in self.winfo_children():
            if isinstance(child, ScrollFrame):
                child.page(screens)
                return

    def refresh(self, paths: Iterable[str] | None) -> None:
        """Handle changed settings (``None``: any of them)."""

    def show_problems(self, problems: Mapping[str, Problem]) -> None:
        """Show the errors and warnings of the current settings, by field."""

    def run_changed(self) -> None:
        """Handle news of the watched run."""

    def opened(self) -> None:
        """Handle coming to the front."""

    def focus_field(self, path: str) -> bool:
        """Give a field the focus. Return ``False`` if the page has no visible row for it."""
        return False
