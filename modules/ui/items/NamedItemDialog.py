"""The window of a reward or an accelerator: settings, description, parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from tkinter import ttk

from modules.ui.form.CardBoard import wrapped_label
from modules.ui.items.ItemDialog import ItemDialog
from modules.ui.items.ParametersWindow import ParametersWindow
from modules.ui.state.parameters import Plain, as_texts
from modules.ui.texts import lists as words
from modules.ui.texts.lists import JSON, NOTHING, NUMBER, SWITCH, TEXT, WHOLE
from modules.ui.Ui import Ui
from modules.util.catalog import Entry
from modules.util.config.BaseConfig import BaseConfig

KINDS = (TEXT, NUMBER, WHOLE, SWITCH, JSON, NOTHING)


class NamedItemDialog(ItemDialog):
    """Edits a copy of an object with a name and ``params``.

    Args:
        name_field: field that holds the name.
        known: the names that come with the program.
    """

    def __init__(
        self,
        ui: Ui,
        title: str,
        item: BaseConfig,
        done: Callable[[BaseConfig], None],
        name_field: str,
        known: Mapping[str, Entry],
    ) -> None:
        self._name_field, self._known = name_field, known
        super().__init__(ui, title, item, done)

    def build(self) -> None:
        form = self.add_form_tab("Settings", lambda setting: True)
        px = self.ui.theme.px
        card = form.add_card("Parameters")
        self.about = wrapped_label(card, self.ui.theme, "Muted.TLabel")
        self.about.grid(row=1, column=0, columnspan=3, sticky="w", pady=(0, px(6)))
        self.more = ttk.Button(card, text="Parameters\u2026", command=self.open_parameters)
        self.more.grid(row=2, column=0, columnspan=3, sticky="w")
        self.more.bind("<Return>", lambda _event: self.more.invoke())
        self.given = wrapped_label(card, self.ui.theme, "Muted.TLabel")
        self.given.grid(row=3, column=0, columnspan=3, sticky="w", pady=(px(6), 0))
        self.changed(self._name_field)

    @property
    def entry(self) -> Entry | None:
        """The known entry for the current name."""
        return self._known.get(str(self.source.value(self._name_field)))

    def changed(self, path: str) -> None:
        entry = self.entry
        self.about.configure(text=entry.help() if entry else words.OTHER_NAME)
        self.given.configure(text=parameters_text(self.source.value("params")) or words.NO_PARAMETERS)

    def open_parameters(self) -> ParametersWindow:
        """Edit the parameters."""
        entry = self.entry
        window = ParametersWindow(
            self.ui,
            words.PARAMETERS_OF.format(name=self.source.value(self._name_field)),
            entry.help() if entry else words.PARAMETERS_ABOUT,
            self.source.value("params"),
            {},
            self._taken_over,
            kinds=KINDS,
            names=entry.params if entry else (),
        )
        window.open()
        return window

    def _taken_over(self, values: dict[str, Plain]) -> None:
        self.source.set_value("params", values)


def parameters_text(values: Mapping[str, Plain]) -> str:
    """``quality = 80, target = 0.5``"""
    return ", ".join(f"{one.name} = {one.text or one.kind}" for one in as_texts(values))
