"""The training page: the form, and a window for all parameters of the optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from tkinter import ttk
from typing import Any

from modules.ui.form.CardBoard import wrapped_label
from modules.ui.items.NamedItemDialog import parameters_text
from modules.ui.items.OptimizerWindow import OptimizerWindow
from modules.ui.pages.FormPage import FormPage
from modules.ui.run.TrainingCurves import TrainingCurves
from modules.ui.state.ConfigState import Problem
from modules.ui.state.optimizer_texts import given_by
from modules.ui.texts import training as words
from modules.util.config.optimizer.OptimizerParameter import Value
from modules.util.config.optimizer.tables import parameters_of

FIELD = "optimizer.params"


class TrainingPage(FormPage):
    """The form. The optimizer's card has an extra line and button for further arguments."""

    def add_to_form(self) -> None:
        px, setting = self.ui.theme.px, self.ui.state.settings[FIELD]
        frame = self.form.extend_card(setting.group, first=False)
        self.parameters = ttk.Button(frame, text=f"{setting.title}\u2026", command=self.open_parameters)
        self.parameters.pack(anchor="w")
        self.parameters.bind("<Return>", lambda _event: self.parameters.invoke())
        self.ui.services.tooltips.add(self.parameters, lambda: setting.tip)
        self.set_now = wrapped_label(frame, self.ui.theme, "Muted.TLabel", card=self.form.cards[setting.group])
        self.set_now.pack(anchor="w", pady=(px(3), 0))
        self._show_parameters()
        self.curves = TrainingCurves(self.ui, self.form, self)

    def refresh(self, paths: Iterable[str] | None) -> None:
        super().refresh(paths)
        if paths is None or FIELD in paths:
            self._show_parameters()
        self.curves.draw()

    def show_problems(self, problems: Mapping[str, Problem]) -> None:
        super().show_problems(problems)
        self.curves.follow()  # the check that found them also counts the steps

    def _show_parameters(self) -> None:
        self.set_now.configure(text=parameters_text(self.ui.state.value(FIELD)) or words.NONE_SET)

    def open_parameters(self) -> OptimizerWindow:
        """Edit the parameters of the optimizer."""
        config = self.ui.state.value("optimizer")
        window = OptimizerWindow(self.ui, config.optimizer, given_by(config), self._taken_over)
        window.open()
        return window

    def _taken_over(self, values: dict[str, Value]) -> None:
        self.parameters.focus_set()
        kind = self.ui.state.value("optimizer").optimizer
        made: dict[str, Any] = {
            one.path: values.pop(one.name, None) for one in parameters_of(kind) if one.field
        }
        with self.ui.errors_shown():
            self.ui.state.set_values({**made, FIELD: values}, words.PARAMETERS_OF.format(name=kind))

    def focus_field(self, path: str) -> bool:
        if path == FIELD:
            self.show_more(True)
            self.scroll.see(self.parameters)
            self.parameters.focus_set()
            return True
        return super().focus_field(path)
