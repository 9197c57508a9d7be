"""The demo project offered on first starts."""

from __future__ import annotations

import tkinter as tk
from tkinter import ttk
from typing import TYPE_CHECKING

from modules.ui.texts import demo as words
from modules.ui.Ui import Ui
from modules.ui.widgets.tk_support import on_event

WIDE = 600
"""Width at 100 % from which on the whole text leaves the page its room."""

if TYPE_CHECKING:
    from modules.ui.demo.DemoWindow import DemoWindow


def open_demo(ui: Ui) -> DemoWindow:
    """Open the window of the demo project, or return the one already open."""
    from modules.ui.demo.DemoWindow import DemoWindow

    for window in ui.root.winfo_children():
        if isinstance(window, DemoWindow):
            window.lift()
            window.focus_set()
            return window
    made = DemoWindow(ui)
    made.open()
    return made


def offer_demo(parent: tk.Misc, ui: Ui) -> DemoOffer | None:
    """Show a strip at the top of ``parent``, at every start until the person has decided."""
    if ui.services.memory.demo_answered:
        return None
    made = DemoOffer(parent, ui)
    made.pack(side="top", fill="x")
    return made


class DemoOffer(ttk.Frame):
    """A strip with two buttons. It blocks nothing."""

    def __init__(self, parent: tk.Misc, ui: Ui) -> None:
        px = ui.theme.px
        super().__init__(parent, padding=(px(14), px(8)))
        self._ui = ui
        self.columnconfigure(0, weight=1)
        label = ttk.Label(self, text=words.OFFER, justify="left", width=20)
        label.grid(row=0, column=0, sticky="ew", padx=(0, px(12)))
        label.bind("<Configure>", lambda event: label.configure(wraplength=max(1, event.width)))
        self.bind("<Configure>", lambda event: label.configure(
            text=words.OFFER if event.width >= px(WIDE) else words.SHORT_OFFER
        ))  # fmt: skip
        self.yes = ttk.Button(self, text=words.ACCEPT, style="Accent.TButton", command=self.accept)
        self.no = ttk.Button(self, text=words.DECLINE, command=self.decline)
        for column, button in enumerate((self.yes, self.no), 1):
            button.grid(row=0, column=column, padx=(px(4), 0))
            button.bind("<Return>", on_event(button.invoke))

    def accept(self) -> None:
        """Open the demo project."""
        self.close()
        open_demo(self._ui)

    def close(self) -> None:
        """Hide the strip for good."""
        self._ui.services.memory.demo_answered = True
        self._ui.services.remember()
        self.destroy()

    def decline(self) -> None:
        """Close, and say where to find the demo later."""
        self.close()
        self._ui.status(words.WHERE_IT_IS)
