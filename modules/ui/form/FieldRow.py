"""One field of a config as a row: change mark, label, input, fault."""

from __future__ import annotations

import json
import tkinter as tk
from collections.abc import Callable
from tkinter import ttk
from typing import TYPE_CHECKING

from modules.ui.form.inputs import make_input
from modules.ui.state.ConfigState import Problem
from modules.ui.texts import window as words
from modules.ui.widgets.tk_support import RIGHT_CLICK
from modules.util.config.settings import Setting
from modules.util.errors import UserError

if TYPE_CHECKING:
    from modules.ui.form.FieldSource import FieldSource
    from modules.ui.Ui import Ui

LABEL_WIDTH = 170
CHANGED = "\u25cf"


class FieldRow:
    """Shows a field of a source and reports edits to it.

    Args:
        card: the frame to grid it into, columns 0 to 2.
        row: first of its two rows; the second is for the fault.
        source: source of values and target of edits.
        focused: called when the input gets the focus.
    """

    def __init__(
        self,
        card: tk.Misc,
        row: int,
        setting: Setting,
        source: FieldSource,
        ui: Ui,
        focused: Callable[[Setting], None],
    ) -> None:
        self.setting = setting
        theme, self._tooltips = ui.theme, ui.services.tooltips
        self._card, self._row, self._source, self._theme = card, row, source, theme
        self._fault: ttk.Label | None = None
        self._problem: Problem | None = None
        self._mark: ttk.Label | None = None
        self._typing = False
        self.shown = False
        self.label = ttk.Label(card, text=setting.title, wraplength=theme.px(LABEL_WIDTH), justify="left")
        self.input = make_input(card, setting, theme, ui.chooser, self._typed, self._picked)
        self._tooltips.add(self.label, self._tip)
        widget = self.input.focus_widget
        widget.bind("<FocusIn>", lambda _event: focused(setting), add="+")
        widget.bind("<FocusOut>", lambda _event: self._left(), add="+")
        for target in (self.label, widget):
            target.bind(RIGHT_CLICK, self._menu, add="+")
        self.label.bind("<Button-1>", lambda _event: self._take_focus())
        widget.bind("<Control-r>", lambda _event: self.reset())
        widget.bind("<Menu>", self._menu, add="+")

    def _tip(self) -> str:
        setting = self.setting
        limits = setting.limits.text()
        default = json.dumps(setting.default, ensure_ascii=False)
        lines = [setting.tip, ""]
        if limits:
            lines.append(words.ALLOWED.format(limits=limits))
        lines.append(words.DEFAULT_AND_NAME.format(default=default, name=setting.path))
        return "\n".join(lines)

    # -- edits -----------------------------------------------------------------------------------------------

    def _typed(self, text: str) -> None:
        self._typing = True  # the text stays as typed ("1e-4", not 0.0001) until the field loses the focus
        try:
            self._show_words(self._source.set_text(self.setting.path, text))
        finally:
            self._typing = False

    def _left(self) -> None:
        self._source.seal()
        if self.shown:
            self.refresh()

    def _picked(self, value: object) -> None:
        try:
            self._source.set_value(self.setting.path, value)
        except UserError as error:
            self._show_words(error)

    def reset(self) -> str:
        """Reset to the default."""
        self._source.reset([self.setting.path])
        return "break"

    # -- showing ---------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Show the value of the source."""
        path = self.setting.path
        if not self._typing:
            self.input.show(self._source.value(path), self._source.text(path))
        self._show_words(self._source.fault(path))
        self._show_mark(not self._source.is_default(path))

    def show(self, shown: bool) -> None:
        """Show or hide the row."""
        if shown is self.shown:
            return
        self.shown = shown
        px = self._theme.px
        if not shown:
            for widget in (self.label, self.input.widget, self._fault, self._mark):
                if widget is not None:
                    widget.grid_remove()
            return
        pad = px(3)
        self.label.grid(row=self._row, column=1, sticky="w", pady=pad, padx=(0, px(10)))
        self.input.widget.grid(row=self._row, column=2, sticky="ew", pady=pad)
        self.refresh()

    def show_problem(self, problem: Problem | None) -> None:
        """Show an error or warning about the field and others. A fault of its own text takes precedence."""
        if problem != self._problem:
            self._problem = problem
            self._show_words(self._source.fault(self.setting.path))

    def _show_words(self, fault: UserError | None) -> None:
        found: UserError | Problem | None = fault if fault is not None else self._problem
        warning = isinstance(found, Problem) and found.warning
        self.input.mark(found is not None and not warning)
        if found is None:
            if self._fault is not None:
                self._fault.grid_remove()
            return
        if self._fault is None:
            self._fault = ttk.Label(
                self._card, style="Error.TLabel", justify="left", font=self._theme.fonts["small"]
            )
        said = found.message if not found.hint else f"{found.message} ({found.hint})"
        self._fault.configure(
            text=said,
            style="Warning.TLabel" if warning else "Error.TLabel",
            wraplength=max(self._theme.px(180), self.input.widget.winfo_width()),
        )
        if self.shown:
            self._fault.grid(row=self._row + 1, column=2, sticky="w")

    def _show_mark(self, changed: bool) -> None:
        if self._mark is None:
            if not changed:
                return
            self._mark = ttk.Label(self._card, text=CHANGED, cursor="hand2", style="Mark.TLabel")
            self._mark.bind("<Button-1>", lambda _event: self.reset())
            self._tooltips.add(
                self._mark,
                lambda: words.CHANGED_TIP.format(
                    default=json.dumps(self.setting.default, ensure_ascii=False)
                ),
            )
        if changed and self.shown:
            self._mark.grid(row=self._row, column=0, sticky="w", padx=(0, self._theme.px(5)))
        else:
            self._mark.grid_remove()

    def restyle(self) -> None:
        """Update after a change of scale."""
        self.label.configure(wraplength=self._theme.px(LABEL_WIDTH))

    def focus(self) -> None:
        """Give the input the focus."""
        self.input.focus_widget.focus_set()

    def _take_focus(self) -> str:
        self.focus()
        return "break"  # otherwise the clicked widget would get the focus after all

    def _menu(self, event: tk.Event[tk.Misc]) -> str:
        menu = tk.Menu(self._card, tearoff=False)
        menu.add_command(label=words.RESET_ROW, command=self.reset)
        menu.add_command(label=words.COPY_NAME.format(name=self.setting.path), command=self._copy)
        widget = self.input.focus_widget
        x, y = (
            (event.x_root, event.y_root)
            if event.num in (2, 3)
            else (widget.winfo_rootx(), widget.winfo_rooty())
        )
        menu.tk_popup(x, y)
        return "break"

    def _copy(self) -> None:
        self._card.clipboard_clear()
        self._card.clipboard_append(self.setting.path)
