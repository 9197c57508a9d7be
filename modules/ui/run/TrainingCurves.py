"""Curves on the page Training: the learning rate over the run, and the noise levels that are drawn."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Mapping
from tkinter import ttk
from typing import Any

from modules.ui.form.CardBoard import wrapped_label
from modules.ui.form.SettingsForm import SettingsForm
from modules.ui.run.CurvePlot import Curve, CurvePlot
from modules.ui.state.runs.CurveHelper import CurveHelper
from modules.ui.texts import training as words
from modules.ui.Ui import Ui

UNKNOWN_STEPS = 1000
HEIGHT = 200


class _Drawing:
    """A button that shows a plot below itself, with a line of text.

    Args:
        field: the setting whose card it is put into.
        from_zero: start the vertical axis at 0.
    """

    def __init__(
        self, ui: Ui, form: SettingsForm, field: str, turned: TrainingCurves, from_zero: bool
    ) -> None:
        group = ui.state.settings[field].group
        frame = form.extend_card(group, first=True)
        self.shown = False
        self.button = ttk.Button(frame, text=words.DRAW, command=self.turn)
        self.button.pack(anchor="w")
        self.button.bind("<Return>", lambda _event: self.button.invoke())
        self.plot = CurvePlot(frame, ui.theme, height=HEIGHT, from_zero=from_zero)
        self.said = wrapped_label(frame, ui.theme, "Muted.TLabel", card=form.cards[group])
        self._turned = turned

    def turn(self) -> None:
        """Show the plot, or hide it."""
        self.shown = not self.shown
        self.button.configure(text=words.HIDE if self.shown else words.DRAW)
        for widget in (self.plot, self.said):
            if self.shown:
                widget.pack(fill="x", pady=(4, 0))
            else:
                widget.pack_forget()
        if self.shown:
            self.say(words.DRAWING)
            self._turned.draw()

    def say(self, text: str) -> None:
        self.said.configure(text=text)


class TrainingCurves:
    """Both drawings; while one is shown, a change of the settings draws it again.

    Args:
        form: whose cards they are put into.
        page: they end with it.
    """

    def __init__(self, ui: Ui, form: SettingsForm, page: tk.Misc) -> None:
        self._ui, self._helper = ui, CurveHelper()
        self.rate = _Drawing(ui, form, "learning_rate", self, from_zero=False)
        # otherwise the noise of a uniform density fills the plot
        self.levels = _Drawing(ui, form, "timestep_distribution", self, from_zero=True)
        self._busy, self._again = False, False
        self._drawn_for = (0, 0)
        page.bind("<Destroy>", lambda event: self._helper.end() if event.widget is page else None, add="+")

    def draw(self) -> None:
        """Draw what is shown; while the last answer is awaited, once more after it."""
        if not (self.rate.shown or self.levels.shown):
            return
        if self._busy:
            self._again = True
            return
        self._busy = True
        config = self._ui.state.config.to_dict()
        steps, epoch_steps = self._drawn_for = self._length()
        self._ui.work(lambda: self._helper.ask(config, steps, epoch_steps), self._show, self._failed)

    def follow(self) -> None:
        """Draw again if more is known about the length of the run, or something else."""
        if self._length() != self._drawn_for and self._ui.services.check.forecast.steps:
            self.draw()

    def _length(self) -> tuple[int, int]:
        """Optimizer steps of the run and of its first epoch, as far as they are known."""
        known = self._ui.services.check.forecast
        return self._ui.state.config.max_steps or known.steps or UNKNOWN_STEPS, known.epoch_steps

    def _done(self) -> None:
        self._busy = False
        if self._again:
            self._again = False
            self.draw()

    def _failed(self, error: Exception) -> None:
        for drawing in (self.rate, self.levels):
            drawing.plot.show("", [])
            drawing.say(str(error))
        self._done()

    def _show(self, answer: Mapping[str, Any]) -> None:
        rate, levels = answer["rate"], answer["levels"]
        if "error" in rate:
            self.rate.plot.show("", [])
            self.rate.say(rate["error"])
        else:
            self.rate.plot.show(words.RATE_TITLE, [Curve(words.RATE, rate["x"], rate["y"])])
            self.rate.say(words.RATE_SAID.format(steps=int(rate["x"][-1])))
        if "error" in levels:
            self.levels.plot.show("", [])
            self.levels.say(levels["error"])
        else:
            curves = [Curve(words.LEVELS_OF[name], **levels[name]) for name in ("drawn", "own")]
            self.levels.plot.show(words.LEVELS_TITLE, curves)
            self.levels.say(words.LEVELS_SAID.format(size=levels["size"], shift=levels["shift"]))
        self._done()
