"""A grid of images of a run's adapters at several strengths, made on request."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from pathlib import Path
from tkinter import ttk

from modules.runner.run_list import RunSummary
from modules.ui.run.SampleGrid import SampleGrid
from modules.ui.run.StrengthsDialog import StrengthsDialog
from modules.ui.state.runs.comparing import Grid
from modules.ui.state.runs.strengths import StrengthImages, StrengthJob
from modules.ui.texts import runs as words
from modules.ui.Ui import Ui
from modules.util.display import counted

MOST_ADAPTERS, FIRST_PROMPTS = 9, 3


class StrengthsPanel(ttk.Frame):
    """A button, a progress display and the grid.

    Args:
        run: the selected run, if it is the only one.
        prompts: prompts of its samples.
    """

    def __init__(
        self, parent: tk.Misc, ui: Ui, run: Callable[[], RunSummary | None], prompts: Callable[[], list[str]]
    ) -> None:
        px = ui.theme.px
        super().__init__(parent, padding=px(8))
        self._ui, self._run, self._prompts = ui, run, prompts
        self._job: StrengthJob | None = None
        top = ttk.Frame(self)
        top.pack(side="top", fill="x", pady=(0, px(6)))
        self.button = ttk.Button(top, text=words.STRENGTHS, command=self.press)
        self.button.bind("<Return>", lambda _event: self.button.invoke())
        self.button.pack(side="left")
        ui.services.tooltips.add(self.button, words.STRENGTHS_TIP)
        self.said = ttk.Label(top, style="Muted.TLabel")
        self.said.pack(side="left", padx=px(10))
        self.grid_ = SampleGrid(self, ui)
        self.grid_.pack(fill="both", expand=True)
        self.grid_.show(Grid(), words.STRENGTHS_NOTHING)
        self.bind("<Destroy>", lambda event: self.stop() if event.widget is self else None)

    def enable(self) -> None:
        """Enable the button if there is something to make or to stop."""
        on = self._job is not None or self._adapters() != []
        self.button.state([("!" if on else "") + "disabled"])

    def _adapters(self) -> list[Path]:
        run = self._run()
        if run is None:
            return []
        own = [run.adapter] if run.adapter is not None and run.adapter.is_file() else []
        saved = sorted((run.path / "save").glob("*.safetensors"))
        return list(dict.fromkeys([*own, *reversed(saved)]))[:MOST_ADAPTERS]

    def press(self) -> None:
        """Ask what to make, or stop making it."""
        run, adapters = self._run(), self._adapters()
        if self._job is not None:
            self.stop()
        elif self._ui.services.runs.is_live_here:
            self._ui.status(words.STRENGTHS_BUSY)
        elif run is not None and adapters:
            StrengthsDialog(self._ui, run, adapters, self._prompts()[:FIRST_PROMPTS], self.make)

    def make(self, wanted: StrengthImages) -> None:
        """Make the images in the background."""
        self._job = StrengthJob(
            wanted, lambda count: self._ui.pump.post(lambda: self._told(count, wanted.total))
        )
        self.button.configure(text=words.STRENGTHS_STOP)
        self._told(0, wanted.total)
        self._ui.work(self._job.run, self._made, self._failed)

    def stop(self) -> None:
        """Stop making images. Finished images stay."""
        if self._job is not None:
            self._job.stop()

    def _told(self, count: int, total: int) -> None:
        if self.winfo_exists() and self._job is not None:
            self.said.configure(text=words.STRENGTHS_AT.format(count=count, total=total))

    def _made(self, grid: Grid) -> None:
        self._job = None
        if self.winfo_exists():
            self._end(counted(len(grid.cells), words.ONE_IMAGE))
            self.grid_.read_again()
            self.grid_.show(grid, words.STRENGTHS_NOTHING)

    def _failed(self, error: Exception) -> None:
        self._job = None
        if self.winfo_exists():
            self._end("")
            self._ui.error(error)

    def _end(self, said: str) -> None:
        self.button.configure(text=words.STRENGTHS)
        self.said.configure(text=said)
        self.enable()
