"""The training page: the form, and a window for optimizer arguments without a row."""

from __future__ import annotations

from collections.abc import Iterable
from tkinter import ttk

from modules.ui.form.CardBoard import wrap_within
from modules.ui.items.ParametersWindow import ParametersWindow
from modules.ui.pages.FormPage import FormPage
from modules.ui.state.parameters import Scalar, as_texts
from modules.ui.texts import training as words
from modules.util.errors import UserError

FIELD = "optimizer.params"
OWN_ROWS = {
    "optimizer.eps": "eps",
    "optimizer.weight_decay": "weight_decay",
    "optimizer.momentum": "momentum",
}
OTHERS = {"lr": "learning_rate", "betas": "optimizer.beta1", "params": "", "self": ""}


class TrainingPage(FormPage):
    """The form. The optimizer's card has an extra line and button for further arguments."""

    def add_to_form(self) -> None:
        px, setting = self.ui.theme.px, self.ui.state.settings[FIELD]
        card = self.form.cards[setting.group]
        frame = self.form.extend_card(setting.group, first=False)
        self.parameters = ttk.Button(frame, text=f"{setting.title}\u2026", command=self.open_parameters)
        self.parameters.pack(anchor="w")
        self.parameters.bind("<Return>", lambda _event: self.parameters.invoke())
        self.ui.services.tooltips.add(self.parameters, lambda: setting.tip)
        self.set_now = ttk.Label(frame, style="Muted.TLabel", justify="left")
        self.set_now.pack(anchor="w", pady=(px(3), 0))
        wrap_within(self.set_now, card, self.ui.theme)
        self._show_parameters()

    def refresh(self, paths: Iterable[str] | None) -> None:
        super().refresh(paths)
        if paths is None or FIELD in paths:
            self._show_parameters()

    def _show_parameters(self) -> None:
        given = as_texts(self.ui.state.value(FIELD))
        shown = ", ".join(f"{one.name} = {one.text or one.kind}" for one in given)
        self.set_now.configure(text=shown or words.NONE_SET)

    def open_parameters(self) -> ParametersWindow:
        """Edit the further arguments."""
        state = self.ui.state
        titles = {path: state.settings[path].title for path in (*OWN_ROWS, *OTHERS.values()) if path}
        taken = {name: words.HAS_FIELD.format(title=titles[path]) for path, name in OWN_ROWS.items()}
        for name, path in OTHERS.items():
            taken[name] = words.HAS_FIELD.format(title=titles[path]) if path else words.SET_BY_PROGRAM
        window = ParametersWindow(
            self.ui,
            state.settings[FIELD].title,
            words.ABOUT.format(tip=state.settings[FIELD].tip),
            state.value(FIELD),
            taken,
            self._taken_over,
        )
        window.open()
        return window

    def _taken_over(self, values: dict[str, Scalar]) -> None:
        self.parameters.focus_set()
        try:
            self.ui.state.set_value(FIELD, values)
        except UserError as error:
            self.ui.error(error)

    def focus_field(self, path: str) -> bool:
        if path == FIELD:
            self.show_more(True)
            self.scroll.see(self.parameters)
            self.parameters.focus_set()
            return True
        return super().focus_field(path)
