"""Rows for many fields, in cards by group."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from tkinter import ttk

from modules.ui.form.CardBoard import CardBoard, wrapped_label
from modules.ui.form.FieldRow import FieldRow
from modules.ui.form.FieldSource import FieldSource
from modules.ui.state.ConfigState import Problem
from modules.ui.Ui import Ui
from modules.util.config.settings import Setting

FORM_KINDS = ("bool", "int", "float", "text", "choice", "choices")


class SettingsForm:
    """A board with one card per group of settings.

    Args:
        parent: container in which the board is packed.
        settings: settings to show, in order; those without a row (hidden, lists) are left out.
        source: source of values and target of edits.
        focused: called with a setting whose input gets the focus.
    """

    def __init__(
        self,
        parent: tk.Misc,
        settings: Iterable[Setting],
        source: FieldSource,
        ui: Ui,
        focused: Callable[[Setting], None] = lambda setting: None,
    ) -> None:
        self.board = CardBoard(parent, ui.theme)
        self.board.pack(fill="x")
        self.source, self._ui, self._theme, self._focused = source, ui, ui.theme, focused
        self.rows: dict[str, FieldRow] = {}
        self.cards: dict[str, ttk.Frame] = {}
        self._members: dict[str, list[FieldRow]] = {}
        self._asides: list[ttk.Frame] = []
        self._wrong: set[str] = set()
        """Fields with an error: it cannot be corrected in a row that is hidden."""
        self.has_more = False
        """True if some rows are shown only on demand, see ``show_more``."""
        self.more_shown = True
        for group, members in groupby([s for s in settings if has_row(s)], key=lambda s: s.group):
            self._add_group(group, list(members))
        self.has_more = any(row.setting.first for row in self.rows.values())
        self.refresh()
        ui.theme.on_change(self._restyle, self.board)

    def _add_group(self, group: str, members: list[Setting]) -> None:
        card = self.cards.get(group)
        if card is None:
            card = self.cards[group] = self.board.add(group)
            self._members[group] = []
        for setting in members:
            row = 1 + 2 * len(self._members[group])
            made = FieldRow(card, row, setting, self.source, self._ui, self._focused)
            self.rows[setting.path] = made
            self._members[group].append(made)

    def add_card(self, title: str, first: bool = False) -> ttk.Frame:
        """Add a card of the page's own, shown until ``show_card`` hides it."""
        card = self.board.add(title, first)
        self.cards[title] = card
        return card

    def show_card(self, title: str, shown: bool) -> None:
        """Show or hide a card of the page's own."""
        self.board.show(self.cards[title], shown)

    def extend_card(self, group: str, first: bool = True) -> ttk.Frame:
        """A frame below the rows of a group, for widgets of the page.

        Args:
            first: whether it is shown without "More" too.
        """
        frame = ttk.Frame(self.cards[group])
        frame.grid(row=500, column=0, columnspan=4, sticky="ew", pady=(self._theme.px(6), 0))
        if not first:
            self._asides.append(frame)
        return frame

    def add_note(self, group: str) -> ttk.Label:
        """A line of text below the rows of a group."""
        note = wrapped_label(self.extend_card(group), self._theme, "Muted.TLabel", card=self.cards[group])
        note.pack(anchor="w")
        return note

    def show_more(self, shown: bool) -> None:
        """Show all rows, or only those of the most important settings."""
        self.more_shown = shown or not self.has_more
        for frame in self._asides:
            frame.grid() if self.more_shown else frame.grid_remove()
        self.refresh()

    def hides(self, path: str) -> bool:
        """Return whether a row is hidden now but would be shown with all rows."""
        row = self.rows.get(path)
        return row is not None and not row.shown and self._applies(path)

    def _applies(self, path: str) -> bool:
        return self.source.is_visible(path) or path in self._wrong

    def behind_more(self) -> list[str]:
        """Fields whose rows are shown only with "More" under the current settings."""
        if not self.has_more:
            return []
        return [path for path, row in self.rows.items() if not row.setting.first and self._applies(path)]

    def refresh(self, paths: Iterable[str] | None = None) -> None:
        """Show new values (``None``: of all rows) and the rows that apply to them."""
        wanted = self.rows.keys() if paths is None else self.rows.keys() & set(paths)
        for row in self.rows.values():
            wanted_now = self.more_shown or row.setting.first
            row.show(wanted_now and self._applies(row.setting.path))
        for path in wanted:
            if self.rows[path].shown:
                self.rows[path].refresh()
        for group, members in self._members.items():
            self.board.show(self.cards[group], any(row.shown for row in members))

    def show_problems(self, problems: Mapping[str, Problem]) -> None:
        """Show problems next to their rows. Rows without an entry are fine. A row with an error is shown even if its
        setting does not apply.
        """
        for path, row in self.rows.items():
            row.show_problem(problems.get(path))
        wrong = {path for path in self.rows if path in problems and not problems[path].warning}
        if wrong != self._wrong:
            self._wrong = wrong
            self.refresh(())

    def focus(self, path: str) -> bool:
        """Give a field the focus. Return ``False`` if it has no visible row."""
        row = self.rows.get(path)
        if row is None or not row.shown:
            return False
        self.board.update_idletasks()
        row.focus()
        return True

    def _restyle(self) -> None:
        for row in self.rows.values():
            row.restyle()


def has_row(setting: Setting) -> bool:
    """Return whether forms have a row for a setting."""
    return not setting.hidden and setting.kind in FORM_KINDS
