"""The bar below the pages: buttons of the run, its progress, and a status line."""

from __future__ import annotations

import tkinter as tk
from functools import partial
from tkinter import ttk

from modules.ui.Actions import Actions
from modules.ui.shell.ForecastLine import ForecastLine
from modules.ui.state.RunControl import LIVE, RunControl
from modules.ui.texts import window as words
from modules.ui.Ui import Ui
from modules.ui.widgets.tk_support import fit_middle


class BottomBar(ttk.Frame):
    """Buttons, progress bars and status line."""

    def __init__(self, parent: tk.Misc, ui: Ui, actions: Actions) -> None:
        px = ui.theme.px
        super().__init__(parent, padding=(px(10), px(8)))
        self._ui = ui
        self.columnconfigure(1, weight=1)
        buttons = ttk.Frame(self)
        buttons.grid(row=0, column=0, sticky="w")
        self.buttons: dict[str, ttk.Button] = {}
        tips = ui.services.tooltips
        for name, label, command, tip in (
            ("start", words.START, actions.start, words.START_TIP),
            (
                "stop",
                words.STOP,
                partial(actions.order, "stop"),
                words.STOP_TIP,
            ),
            ("pause", words.PAUSE, actions.pause_or_resume, words.PAUSE_TIP),
            ("backup", words.BACKUP, partial(actions.order, "backup"), words.BACKUP_TIP),
            ("sample", words.SAMPLE, partial(actions.order, "sample"), words.SAMPLE_TIP),
        ):
            style = "Accent.TButton" if name == "start" else "TButton"
            button = ttk.Button(buttons, text=label, style=style, command=command)
            button.pack(side="left", padx=(0, px(4)))
            tips.add(button, tip)
            self.buttons[name] = button
        middle = ttk.Frame(self)
        middle.grid(row=0, column=1, sticky="ew", padx=px(12))
        middle.columnconfigure(0, weight=1)
        self._text = ttk.Label(middle, text="", anchor="w", width=10)
        self._text.grid(row=0, column=0, columnspan=2, sticky="ew")
        tips.add(self._text, lambda: str(self._text.cget("text")))
        self.run_bar = ttk.Progressbar(middle, maximum=1.0)
        self.run_bar.grid(row=1, column=0, sticky="ew", pady=(px(3), 0))
        self.epoch_bar = ttk.Progressbar(middle, maximum=1.0, length=px(110))
        self.epoch_bar.grid(row=1, column=1, padx=(px(6), 0), pady=(px(3), 0))
        self.forecast = ForecastLine(middle, ui)
        self.forecast.grid(row=2, column=0, columnspan=2, sticky="ew", pady=(px(2), 0))
        tips.add(self.run_bar, words.RUN_BAR_TIP)
        tips.add(self.epoch_bar, words.EPOCH_BAR_TIP)
        self.problems = ttk.Button(self, text=words.NO_PROBLEMS, command=actions.toggle_problems)
        self.problems.grid(row=0, column=2, sticky="e")
        tips.add(self.problems, words.PROBLEMS_TIP)
        self._status = ttk.Label(self, style="Small.TLabel", anchor="w", width=10)
        self._status.grid(row=1, column=0, columnspan=3, sticky="ew", pady=(px(6), 0))
        self.said = ""
        self._status.bind("<Configure>", lambda _event: self._fit())
        tips.add(self._status, lambda: self.said)

    def _enable(self, name: str, on: bool) -> None:
        self.buttons[name].state([("!" if on else "") + "disabled"])

    def say(self, text: str) -> None:
        """Show a status text. One that is too long is shortened in the middle, so that a path keeps both
        ends.
        """
        self.said = text.replace("\n", "  ")
        self._fit()

    def _fit(self) -> None:
        room, font = self._status.winfo_width(), self._ui.theme.fonts["small"]
        self._status.configure(text=fit_middle(self.said, room, font))

    def show_problems(self, errors: int, warnings: int, checking: bool, checked: bool) -> None:
        """Show the number of problems, and whether the files were checked too."""
        if errors or warnings:
            text = words.problem_counts(errors, warnings) + ("\u2026" if checking else "")
        elif checking:
            text = words.CHECKING_FILES
        else:
            text = words.NO_PROBLEMS if checked else words.FILES_NOT_CHECKED
        self.problems.configure(text=text)

    def show_run(self, control: RunControl, waiting: str = "") -> None:
        """Show the state of the run.

        Args:
            waiting: what the start of a run is waiting for.
        """
        live = control.state in LIVE
        progress = control.progress()
        self._enable("start", not control.is_live_here and not waiting)
        for name in ("stop", "pause", "backup", "sample"):
            self._enable(name, control.state in ("running", "paused") or (name == "stop" and bool(waiting)))
        self.buttons["pause"].configure(text=words.RESUME if control.state == "paused" else words.PAUSE)
        text = words.WAITS.format(reason=waiting) if waiting else progress.text or words.READY
        self._text.configure(text=text)
        for bar in (self.run_bar, self.epoch_bar):
            bar.grid() if live else bar.grid_remove()
        self.forecast.grid_remove() if live else self.forecast.grid()
        self.run_bar.configure(value=progress.run)
        self.epoch_bar.configure(value=progress.epoch)
