"""The window of the optimizer's parameters: a row for each, with its default, its range and what it does."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from tkinter import ttk

from modules.ui.dialogs import Dialog
from modules.ui.form.inputs import choice_box
from modules.ui.state.optimizer_texts import Given, choices_of, read_text, value_text
from modules.ui.texts import training as words
from modules.ui.Ui import Ui
from modules.ui.widgets.ScrollFrame import ScrollFrame
from modules.ui.widgets.tk_support import show_in_grid
from modules.util.config.optimizer.OptimizerParameter import OptimizerParameter, Value
from modules.util.config.optimizer.tables import parameters_of
from modules.util.enum.choices import Optimizer
from modules.util.errors import UserError


def press_by_return(button: ttk.Button) -> None:
    """Return presses the button; with Ctrl it is the window's key for OK."""
    button.bind("<Return>", lambda _event: button.invoke())
    button.bind("<Control-Return>", lambda _event: None)


class _Row:
    """A parameter: its name, a field, a button back to the default, its sentence, and the fault below."""

    def __init__(
        self, window: OptimizerWindow, parent: ttk.Frame, parameter: OptimizerParameter, text: str
    ) -> None:
        theme, px = window.ui.theme, window.ui.theme.px
        self.parameter = parameter
        self.frame = ttk.Frame(parent, padding=(px(10), px(6)))
        self.frame.columnconfigure(0, minsize=px(220))
        self.frame.columnconfigure(1, weight=1)
        self.name = ttk.Label(self.frame, text=parameter.name)
        self.input = self._input(window)
        self.reset = ttk.Button(self.frame, text=words.TO_DEFAULT, command=self.to_default)
        press_by_return(self.reset)
        about = words.ROW_ABOUT.format(
            about=parameter.about, default=value_text(parameter.default), allowed=parameter.allowed()
        )
        said = ttk.Label(self.frame, text=about, style="Muted.TLabel", wraplength=px(610), justify="left")
        self.fault = ttk.Label(self.frame, style="Error.TLabel", wraplength=px(610), justify="left")
        self.name.grid(row=0, column=0, sticky="w")
        self.input.grid(row=0, column=1, sticky="ew", padx=px(8))
        self.reset.grid(row=0, column=2)
        said.grid(row=1, column=0, columnspan=3, sticky="w", pady=(px(2), 0))
        self.fault.grid(row=2, column=0, columnspan=3, sticky="w")
        self.put(text)
        theme.on_change(self.show_set, self.frame)

    def _input(self, window: OptimizerWindow) -> ttk.Entry:
        choices, theme = choices_of(self.parameter), window.ui.theme
        if not choices:
            entry = ttk.Entry(self.frame, font=theme.fonts["text"])
            entry.bind("<KeyRelease>", lambda _event: self.changed())
            return entry
        combo = choice_box(self.frame, theme, choices)
        combo.bind("<<ComboboxSelected>>", lambda _event: self._chosen(combo))
        return combo

    def _chosen(self, combo: ttk.Combobox) -> None:
        combo.selection_clear()
        self.changed()

    def put(self, text: str) -> None:
        """Show a text in the field."""
        if isinstance(self.input, ttk.Combobox):
            self.input.set(text)
        else:
            self.input.delete(0, "end")
            self.input.insert(0, text)
        self.changed()

    def to_default(self) -> None:
        """Leave it to the update rule again."""
        self.put(value_text(self.parameter.default) if isinstance(self.input, ttk.Combobox) else "")

    def changed(self) -> None:
        """Do nothing here: the text is checked on OK."""
        self.show_fault("")
        self.show_set()

    def show_set(self) -> None:
        """The name of a parameter that is not at its default is bold."""
        self.name.configure(style="Bold.TLabel" if self.is_set() else "TLabel")

    def is_set(self) -> bool:
        """Return whether it is anything but the default."""
        return self.input.get().strip() not in ("", value_text(self.parameter.default))

    def show_fault(self, message: str) -> None:
        self.input.state(["invalid" if message else "!invalid"])
        self.fault.configure(text=message)
        show_in_grid(self.fault, bool(message))


class OptimizerWindow(Dialog):
    """Edits a copy; ``done`` gets what is not at its default on OK, when nothing in it is wrong.

    Args:
        kind: whose parameters.
        given: what is set, and what is there that the optimizer does not have.
        done: called with the values by name.
    """

    def __init__(
        self, ui: Ui, kind: Optimizer, given: Given, done: Callable[[dict[str, Value]], None]
    ) -> None:
        super().__init__(ui, words.PARAMETERS_OF.format(name=kind), width=720, height=520)
        self._done, self._given = done, given
        about = words.PARAMETERS_ABOUT.format(name=kind)
        ttk.Label(self.body, text=about, wraplength=ui.theme.px(680), justify="left").pack(anchor="w")
        self._scroll = ScrollFrame(self.body, ui.theme)
        self._scroll.pack(fill="both", expand=True, pady=(ui.theme.px(8), 0))
        self.strange: dict[str, ttk.Button] = {}
        for name, (value, fault) in given.strange.items():
            self._add_strange(name, words.STRANGE.format(name=name, value=value_text(value), fault=fault))
        self.rows: dict[str, _Row] = {}
        for parameter in parameters_of(kind):
            self._add(parameter)
        self.add_button("OK", self.accept, accent=True)
        self.add_button("Cancel", self.cancel)
        self.all = ttk.Button(self.foot, text=words.ALL_TO_DEFAULT, command=self.all_to_default)
        self.all.pack(side="left")
        press_by_return(self.all)
        self.bind("<Control-Return>", lambda _event: self.accept())

    def _add(self, parameter: OptimizerParameter) -> None:
        combo, given = bool(choices_of(parameter)), parameter.name in self._given.values
        value = self._given.values.get(parameter.name, parameter.default)
        row = _Row(self, self._scroll.inside, parameter, value_text(value) if combo or given else "")
        row.frame.pack(fill="x", pady=(0, self.ui.theme.px(2)))
        self.ui.services.tooltips.add(row.reset, words.TO_DEFAULT_TIP)
        self.rows[parameter.name] = row

    def _add_strange(self, name: str, text: str) -> None:
        px = self.ui.theme.px
        frame = ttk.Frame(self._scroll.inside, padding=(px(10), px(6)))
        frame.pack(fill="x", pady=(0, px(2)))
        frame.columnconfigure(0, weight=1)
        label = ttk.Label(frame, text=text, style="Error.TLabel", wraplength=px(540), justify="left")
        label.grid(row=0, column=0, sticky="w")
        button = ttk.Button(frame, text=words.TAKE_OUT, command=lambda: self._take_out(name, frame))
        press_by_return(button)
        button.grid(row=0, column=1, padx=(px(8), 0))
        self.strange[name] = button

    def _take_out(self, name: str, frame: tk.Misc) -> None:
        del self.strange[name]
        frame.destroy()
        self._first().focus_set()

    def _first(self) -> tk.Misc:
        return next(iter(self.strange.values()), None) or next(iter(self.rows.values())).input

    def all_to_default(self) -> None:
        """Leave everything to the update rule again."""
        for row in self.rows.values():
            row.to_default()

    def accept(self) -> None:
        """Hand the values over and close, or mark what is wrong and go to the first."""
        values: dict[str, Value] = {}
        wrong: list[tk.Misc] = list(self.strange.values())
        for name, row in self.rows.items():
            try:
                value = read_text(row.parameter, row.input.get())
            except UserError as error:
                row.show_fault(error.message)
                wrong.append(row.input)
                continue
            kept = name in self._given.values and row.input.get().strip() and not self._reset(row)
            if row.is_set() or kept:
                values[name] = value
        if wrong:
            self.update_idletasks()
            self._scroll.see(wrong[0])
            wrong[0].focus_set()
            return
        self.destroy()
        self._done(values)

    def _reset(self, row: _Row) -> bool:
        """Return whether a parameter that was set is at its default now; one that was set to it stays set."""
        before = self._given.values[row.parameter.name]
        return not row.is_set() and value_text(before) != value_text(row.parameter.default)

    def open(self) -> None:
        """Show it, ready to type."""
        self.present(self._first())
