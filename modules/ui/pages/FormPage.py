"""A page that consists of the settings of its sections."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Iterable, Mapping
from tkinter import ttk

from modules.ui.form.SettingsForm import SettingsForm
from modules.ui.pages.Page import Page
from modules.ui.pages.PageSpec import PageSpec
from modules.ui.state.ConfigState import Problem
from modules.ui.Ui import Ui
from modules.ui.widgets.ScrollFrame import ScrollFrame
from modules.util.config.settings import Setting


class FormPage(Page):
    """Title, then the form. Override ``add_before`` and ``add_to_form`` to put more on the page."""

    def __init__(self, parent: tk.Misc, ui: Ui, spec: PageSpec) -> None:
        super().__init__(parent, ui, spec)
        self.scroll = ScrollFrame(self, ui.theme)
        self.scroll.pack(fill="both", expand=True)
        self.add_head(self.scroll.inside)
        self.add_before(self.scroll.inside)
        settings = [s for s in ui.state.settings.values() if s.section in spec.sections]
        self.form = SettingsForm(
            self.scroll.inside,
            settings,
            ui.state,
            ui.theme,
            ui.services.tooltips,
            ui.chooser,
            self._focused,
        )
        self.add_to_form()

    def add_before(self, parent: ttk.Frame) -> None:
        """Widgets between the title and the form."""

    def add_to_form(self) -> None:
        """Cards besides those of the settings, widgets below their rows."""

    def _focused(self, setting: Setting) -> None:
        self.ui.status(f"{setting.title}: {setting.tip}")

    def refresh(self, paths: Iterable[str] | None) -> None:
        self.form.refresh(paths)

    def show_problems(self, problems: Mapping[str, Problem]) -> None:
        self.form.show_problems(problems)

    def focus_field(self, path: str) -> bool:
        return self.form.focus(path)
