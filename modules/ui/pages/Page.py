"""What every page of the main window is."""

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
    """A page: built when first opened, told of changes while it exists.

    Args:
        parent: the window's middle.
        ui: what pages share.
        spec: its entry in the sidebar.
    """

    def __init__(self, parent: tk.Misc, ui: Ui, spec: PageSpec) -> None:
        super().__init__(parent, style="Back.TFrame")
        self.ui = ui
        self.spec = spec
        self.showing = False
        """Whether the page is in front; kept by the window (it may not be on the screen yet)."""

    def add_head(self, parent: tk.Misc) -> FlowFrame:
        """Title and explanation."""
        px = self.ui.theme.px
        head = FlowFrame(parent, px(14), style="Back.TFrame")
        head.pack(fill="x", padx=px(14), pady=(px(12), px(8)))
        head.add(ttk.Label(head, text=self.spec.title, style="Title.TLabel"))
        head.add(ttk.Label(head, text=self.spec.about, style="Back.TLabel"))
        return head

    def scroll_by(self, screens: int) -> None:
        """A screen down (1) or up (-1), where the page scrolls."""
        for child in self.winfo_children():
            if isinstance(child, ScrollFrame):
                child.page(screens)
                return

    def refresh(self, paths: Iterable[str] | None) -> None:
        """Settings changed (``None``: any of them)."""

    def show_problems(self, problems: Mapping[str, Problem]) -> None:
        """What is wrong or odd at the present settings, by field."""

    def run_changed(self) -> None:
        """The run that is watched has something new to show."""

    def opened(self) -> None:
        """The page came to the front."""

    def focus_field(self, path: str) -> bool:
        """Give a field the focus; false when the page has no visible row for it."""
        return False
