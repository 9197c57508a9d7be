"""A page that consists of the settings of its sections."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Iterable, Mapping
from tkinter import ttk

from modules.ui.form.SettingsForm import SettingsForm
from modules.ui.pages.Page import Page
from modules.ui.pages.PageSpec import PageSpec
from modules.ui.state.ConfigState import Problem
from modules.ui.texts import window as words
from modules.ui.Ui import Ui
from modules.ui.widgets.ScrollFrame import ScrollFrame
from modules.util.config.settings import Setting


class FormPage(Page):
    """A title above the form. Override ``add_before`` and ``add_to_form`` to add to the page."""

    def __init__(self, parent: tk.Misc, ui: Ui, spec: PageSpec) -> None:
        super().__init__(parent, ui, spec)
        self.scroll = ScrollFrame(self, ui.theme)
        self.scroll.pack(fill="both", expand=True)
        self.add_head(self.scroll.inside)
        self.add_before(self.scroll.inside)
        settings = [s for s in ui.state.settings.values() if s.section in spec.sections]
        self.form = SettingsForm(self.scroll.inside, settings, ui.state, ui, self._focused)
        self.more = ttk.Button(self.scroll.inside, style="Back.TButton", command=self._turn_more)
        self.more.bind("<Return>", lambda _event: self.more.invoke())
        self._wrong: set[str] = set()
        self._said = ""
        self.add_to_form()
        if self.form.has_more:
            ui.services.tooltips.add(self.more, words.MORE_TIP)
            self.form.show_more(spec.key in ui.services.memory.more)
            self._name_more()

    # -- the settings that matter first ----------------------------------------------------------------------

    def _turn_more(self) -> None:
        self.show_more(not self.form.more_shown)
        self.scroll.see(self.more)

    def show_more(self, shown: bool) -> None:
        """Show all settings of the page or only the most important ones. The window remembers the choice."""
        if shown is self.form.more_shown:
            return
        self.form.show_more(shown)
        memory, key = self.ui.services.memory, self.spec.key
        memory.more = [other for other in memory.more if other != key] + ([key] if shown else [])
        self.ui.services.remember()
        self._name_more()

    def _name_more(self) -> None:
        """Update the text of the button: how many settings it hides, and how many of them are not at their
        defaults.
        """
        hidden = self.form.behind_more()
        changed = sum(not self.ui.state.is_default(path) for path in hidden)
        text = words.FEWER if self.form.more_shown else words.more_settings(len(hidden), changed)
        self.more.configure(text=text)
        if hidden:
            px = self.ui.theme.px
            self.more.pack(anchor="w", padx=px(14), pady=(px(4), px(14)))
        else:
            self.more.pack_forget()

    # -- the page --------------------------------------------------------------------------------------------

    def add_before(self, parent: ttk.Frame) -> None:
        """Add widgets between the title and the form."""

    def add_to_form(self) -> None:
        """Add cards next to those of the settings, or widgets below their rows."""

    def _focused(self, setting: Setting) -> None:
        # the focus that returns when a dialog closes must not replace the message of the dialog's action
        if setting.path != self._said:
            self.ui.status(f"{setting.title}: {setting.tip}")
        self._said = setting.path

    def refresh(self, paths: Iterable[str] | None) -> None:
        self.form.refresh(paths)
        self._name_more()

    def show_problems(self, problems: Mapping[str, Problem]) -> None:
        self.form.show_problems(problems)
        wrong = {path for path, problem in problems.items() if not problem.warning and path in self.form.rows}
        fresh, self._wrong = wrong - self._wrong, wrong
        if any(self.form.hides(path) for path in fresh):
            self.show_more(True)

    def focus_field(self, path: str) -> bool:
        if self.form.hides(path):
            self.show_more(True)
        return self.form.focus(path)
