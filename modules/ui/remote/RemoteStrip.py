"""The line of the Run page about a run on another computer: its connection, and buttons for its files."""

from __future__ import annotations

import tkinter as tk
from tkinter import ttk

from modules.ui.remote.JobLine import JobLine
from modules.ui.state.RunControl import RunControl
from modules.ui.texts import remote as words
from modules.ui.Ui import Ui
from modules.ui.widgets.FlowFrame import FlowFrame


class RemoteStrip(ttk.Frame):
    """Shown by ``look`` only for such a run, with ``grid``.

    Args:
        row: its row in the grid of its parent.
    """

    def __init__(self, parent: tk.Misc, ui: Ui, control: RunControl, row: int) -> None:
        px, tips = ui.theme.px, ui.services.tooltips
        super().__init__(parent, padding=(px(10), px(6)))
        self._ui, self._control, self._row = ui, control, row
        self.line = ttk.Label(self, anchor="w", justify="left")
        self.line.pack(fill="x", pady=(0, px(4)))
        self.bind(
            "<Configure>",
            lambda _event: self.line.configure(wraplength=max(100, self.winfo_width() - px(20))),
        )
        buttons = FlowFrame(self, px(6))
        buttons.pack(fill="x")
        self._backups = tk.BooleanVar(self, False)
        self.buttons: dict[str, ttk.Button] = {}
        remote = ui.services.remote
        for text, command, tip in (
            (words.CONNECT, remote.watch.connect, words.CONNECT_TIP),
            (words.FETCH, lambda: remote.fetch(self._backups.get()), words.FETCH_TIP),
            (words.RESUME, remote.resume, words.RESUME_TIP),
        ):
            self.buttons[text] = buttons.add_button(text, command)
            tips.add(self.buttons[text], tip)
            if text == words.FETCH:
                buttons.add(ttk.Checkbutton(buttons, text=words.WITH_BACKUPS, variable=self._backups))
        self.job = JobLine(self, ui)
        self.job.pack(fill="x", pady=(px(4), 0))
        remote.listen(self.look, self)

    def look(self) -> None:
        """Show the present state."""
        watch = self._ui.services.remote.watch
        if not self._control.is_mirror:
            self.grid_remove()
            return
        self.line.configure(text=watch.line)
        known, live = watch.record is not None, self._control.is_live
        for text, on in (
            (words.CONNECT, known and not watch.connecting),
            (words.FETCH, known),
            (words.RESUME, known and not watch.connecting and not live),
        ):
            self.buttons[text].state([("!" if on else "") + "disabled"])
        self.grid(row=self._row, column=0, sticky="ew", pady=(0, self._ui.theme.px(8)))
