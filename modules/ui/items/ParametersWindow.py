"""A window for names with values: arguments of the optimizer, a reward or an accelerator."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping, Sequence
from tkinter import ttk
from typing import Any

from modules.ui.dialogs import Dialog
from modules.ui.form.inputs import choice_box
from modules.ui.state.parameters import KINDS, ParameterText, Plain, as_texts, read_texts
from modules.ui.texts.lists import NOTHING
from modules.ui.Ui import Ui
from modules.ui.widgets.ScrollFrame import ScrollFrame
from modules.ui.widgets.tk_support import show_in_grid

NO_TEXT = ""


class _Row:
    """One parameter: name, kind, value, a remove button, and the fault below."""

    def __init__(self, window: ParametersWindow, parent: tk.Misc, given: ParameterText) -> None:
        theme = window.ui.theme
        self.frame = ttk.Frame(parent)
        self.frame.columnconfigure((0, 2), weight=1, uniform="texts")
        font = theme.fonts["text"]
        self.name = self._name_input(window)
        self.kind = choice_box(self.frame, theme, window.kinds, 13)
        self.value = ttk.Entry(self.frame, font=font, width=14)
        self.drop = ttk.Button(self.frame, text="\u00d7", width=2, command=lambda: window.remove(self))
        self.name.insert(0, given.name)
        self.kind.set(given.kind)
        self.value.insert(0, given.text)
        self.kind.bind("<<ComboboxSelected>>", lambda _event: self._kind_chosen())
        for column, widget in enumerate((self.name, self.kind, self.value, self.drop)):
            widget.grid(row=0, column=column, sticky="ew", padx=(0, theme.px(6)))
        self.faults = {
            place: ttk.Label(self.frame, style="Error.TLabel", wraplength=theme.px(220), justify="left")
            for place in ("name", "value")
        }
        self.faults["name"].grid(row=1, column=0, sticky="w")
        self.faults["value"].grid(row=1, column=2, sticky="w")
        for entry in (self.name, self.value):
            entry.bind("<KeyRelease>", lambda _event: window.clear_faults(self))
        window.clear_faults(self)
        self._kind_chosen()

    def _name_input(self, window: ParametersWindow) -> ttk.Entry:
        theme = window.ui.theme
        if not window.names:
            return ttk.Entry(self.frame, font=theme.fonts["text"], width=14)
        combo = choice_box(self.frame, theme, window.names, 14, typed=True)
        combo.bind("<<ComboboxSelected>>", lambda _event: combo.selection_clear())
        return combo

    def _kind_chosen(self) -> None:
        self.kind.selection_clear()
        self.value.state(["disabled" if self.kind.get() == NOTHING else "!disabled"])

    def text(self) -> ParameterText:
        kind = self.kind.get()
        return ParameterText(self.name.get(), kind, NO_TEXT if kind == NOTHING else self.value.get())

    def show_fault(self, place: str, message: str) -> None:
        label, entry = self.faults[place], self.name if place == "name" else self.value
        entry.state(["invalid" if message else "!invalid"])
        label.configure(text=message)
        show_in_grid(label, bool(message))


class ParametersWindow(Dialog):
    """Edits a copy. OK passes it to ``done`` if it is valid.

    Args:
        title, about: title of the window; purpose of the parameters.
        values: initial values.
        taken: names that cannot be used, with the reason.
        done: called with the new values.
        kinds: kinds of values, the usual one first.
        names: names to pick from; others can be typed.
    """

    def __init__(
        self,
        ui: Ui,
        title: str,
        about: str,
        values: Mapping[str, Plain],
        taken: Mapping[str, str],
        done: Callable[[dict[str, Any]], None],
        kinds: tuple[str, ...] = KINDS,
        names: Sequence[str] = (),
    ) -> None:
        super().__init__(ui, title, width=640, height=420)
        px = ui.theme.px
        self._taken, self._done, self.kinds, self.names = taken, done, kinds, tuple(names)
        self.rows: list[_Row] = []
        ttk.Label(self.body, text=about, wraplength=px(600), justify="left").pack(anchor="w")
        self._scroll = ScrollFrame(self.body, ui.theme)
        self._scroll.pack(fill="both", expand=True, pady=(px(8), 0))
        for given in as_texts(values):
            self._add(given)
        self.add_button("OK", self.accept, accent=True)
        self.add_button("Cancel", self.cancel)
        self.more = ttk.Button(self.foot, text="Add", command=self.add)
        self.more.pack(side="left")
        self.more.bind("<Return>", lambda _event: self.add())
        self.bind("<Insert>", lambda _event: self.add())
        self.bind("<Control-Return>", lambda _event: self.accept())

    def _add(self, given: ParameterText) -> _Row:
        row = _Row(self, self._scroll.inside, given)
        row.frame.pack(fill="x", pady=self.ui.theme.px(3))
        self.rows.append(row)
        return row

    def add(self) -> None:
        """Add an empty row, ready to be typed into."""
        row = self._add(ParameterText(kind=self.kinds[0]))
        self.update_idletasks()
        self._scroll.see(row.frame)
        row.name.focus_set()

    def remove(self, row: _Row) -> None:
        """Remove a parameter."""
        index = self.rows.index(row)
        self.rows.remove(row)
        row.frame.destroy()
        left = self.rows[min(index, len(self.rows) - 1)] if self.rows else None
        (left.name if left is not None else self.more).focus_set()

    def clear_faults(self, row: _Row) -> None:
        """Clear the faults of a row being edited; it is validated on OK."""
        for place in row.faults:
            row.show_fault(place, "")

    def accept(self) -> None:
        """Pass the values on and close, or mark the invalid fields and focus the first."""
        values, faults = read_texts([row.text() for row in self.rows], self._taken)
        for index, row in enumerate(self.rows):
            for place in ("name", "value"):
                row.show_fault(place, faults.get((index, place), ""))
        if faults:
            index, place = next(iter(faults))
            row = self.rows[index]
            self.update_idletasks()
            self._scroll.see(row.frame)
            (row.name if place == "name" else row.value).focus_set()
            return
        self.destroy()
        self._done(values)

    def open(self) -> None:
        """Show it, ready for typing."""
        if not self.rows:
            self._add(ParameterText(kind=self.kinds[0]))
        self.present(self.rows[0].name)
