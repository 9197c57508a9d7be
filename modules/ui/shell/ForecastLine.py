"""The predicted cost of the run, next to Start, with the cheapest saving if it does not fit."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Sequence
from tkinter import ttk

from modules.runner.pace import Pace
from modules.ui.state.ConfigState import plain_value
from modules.ui.state.runs.Forecast import GIB, Forecast
from modules.ui.state.runs.Trial import Trial
from modules.ui.texts import forecast as words
from modules.ui.Ui import Ui
from modules.ui.widgets.tk_support import fit_middle, show_in_grid
from modules.util.errors import UserError


class ForecastLine(ttk.Frame):
    """A line of text, and a button that applies a saving or measures a step. Hidden while a run is training."""

    def __init__(self, parent: tk.Misc, ui: Ui) -> None:
        super().__init__(parent)
        self._ui = ui
        self.columnconfigure(0, weight=1)
        self.said, self._changes = "", ""
        self._shorter: list[str] = []
        self._forecast = Forecast()
        self._trial: Trial | None = None
        self.label = ttk.Label(self, anchor="w", width=10)
        self.label.grid(row=0, column=0, sticky="ew")
        self.label.bind("<Configure>", lambda _event: self._fit())
        self.cure = ttk.Button(self, text=words.MAKE_IT_FIT, style="Small.TButton", command=self.make_it_fit)
        self.measure = ttk.Button(
            self, text=words.MEASURE, style="Small.TButton", command=self.measure_or_cancel
        )
        for column, button in enumerate((self.cure, self.measure), 1):
            button.grid(row=0, column=column, padx=(ui.theme.px(6), 0))
            button.grid_remove()
            button.bind("<Return>", lambda _event, one=button: one.invoke())  # type: ignore[misc]
        tips = ui.services.tooltips
        tips.add(self.label, lambda: f"{self.said}\n\n{words.TIP}" if self.said else "")
        tips.add(self.cure, self._cure_tip)
        tips.add(self.measure, words.MEASURE_TIP)
        self.bind("<Destroy>", self._destroyed, add="+")

    # -- showing ---------------------------------------------------------------------------------------------

    def show(self, forecast: Forecast, looking: bool) -> None:
        """Show what is known; ``looking`` while more is being computed."""
        self._forecast = forecast
        memory = forecast.memory
        if self._trial is None:
            self._say(forecast.text() or (words.LOOKING if looking else ""), forecast.short_texts())
        bad = memory is not None and not memory.fits
        self.label.configure(style="Error.TLabel" if bad else "TLabel")
        saving = memory.saving if memory is not None else {}
        self._changes = ", ".join(self._named(path, value) for path, value in saving.items())
        show_in_grid(self.cure, bool(saving))
        unknown = bool(forecast.steps) and forecast.seconds is None and not bad
        show_in_grid(self.measure, unknown or self._trial is not None)

    def _named(self, path: str, value: object) -> str:
        setting = self._ui.state.settings.get(path)
        return words.CHANGE.format(title=setting.title if setting else path, value=plain_value(value))

    def _cure_tip(self) -> str:
        memory = self._forecast.memory
        needed = memory.then / GIB if memory is not None else 0.0
        return words.MAKE_IT_FIT_TIP.format(changes=self._changes, needed=needed)

    def _say(self, text: str, shorter: Sequence[str] = ()) -> None:
        self.said, self._shorter = text, [one for one in shorter if one]
        self._fit()

    def _fit(self) -> None:
        room, font = self.label.winfo_width(), self._ui.theme.fonts["text"]
        fitting = (one for one in (self.said, *self._shorter) if font.measure(one) <= room)
        self.label.configure(text=next(fitting, None) or fit_middle(self.said, room, font))

    # -- doing -----------------------------------------------------------------------------------------------

    def make_it_fit(self) -> None:
        """Apply the cheapest change that makes the run fit. A single undo reverts it."""
        memory = self._forecast.memory
        if memory is None or not memory.saving:
            return
        changes = self._changes
        with self._ui.errors_shown():
            self._ui.state.set_values(dict(memory.saving), words.MAKE_IT_FIT)
            self._ui.status(words.MADE_TO_FIT.format(changes=changes))

    def measure_or_cancel(self) -> None:
        """Measure the time of a step in the background, or cancel that."""
        if self._trial is not None:
            self._trial.cancel()
            return
        pump, services = self._ui.pump, self._ui.services
        config = self._ui.state.config.to_dict()
        trial = self._trial = services.runs.trial(
            config, lambda name: pump.post(lambda: self._told(trial, name))
        )
        self.measure.configure(text=words.CANCEL)
        self._told(trial, words.LOADING)
        self._ui.work(
            trial.run, lambda pace: self._measured(trial, pace), lambda error: self._failed(trial, error)
        )

    def _told(self, trial: Trial, name: str) -> None:
        if self._trial is trial and self.winfo_exists():
            self._say(words.MEASURING.format(progress=name))

    def _measured(self, trial: Trial, pace: Pace | None) -> None:
        if pace is not None:
            self._ui.services.check.take_pace(trial.config, pace.seconds)
        self._over(words.MEASURED.format(seconds=pace.seconds) if pace is not None else "")

    def _failed(self, trial: Trial, error: Exception) -> None:
        self._over("")
        if isinstance(error, UserError):
            error = UserError(words.NOT_MEASURED.format(reason=error.message), hint=error.hint)
        self._ui.error(error)

    def _over(self, said: str) -> None:
        self._trial = None
        if said:
            self._ui.status(said)
        if self.winfo_exists():
            self.measure.configure(text=words.MEASURE)
            self.show(self._ui.services.check.forecast, False)

    def _destroyed(self, event: tk.Event[tk.Misc]) -> None:
        if event.widget is self and self._trial is not None:
            self._trial.cancel()
