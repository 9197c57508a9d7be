"""A window for one concept or sample: its settings on tabs, OK and Cancel."""

from __future__ import annotations

from collections.abc import Callable
from tkinter import ttk

from modules.ui.dialogs import Dialog
from modules.ui.form.FieldSource import ObjectSource
from modules.ui.form.SettingsForm import SettingsForm
from modules.ui.Ui import Ui
from modules.ui.widgets.ScrollFrame import ScrollFrame
from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.settings import Setting


class ItemDialog(Dialog):
    """Edits a copy. OK passes it to ``done`` if it is valid.

    Args:
        done: called with the edited copy.
    """

    def __init__(self, ui: Ui, title: str, item: BaseConfig, done: Callable[[BaseConfig], None]) -> None:
        super().__init__(ui, title, width=820, height=640)
        self.source = ObjectSource(item.copy_of(), self._changed)
        self._done = done
        self.forms: list[SettingsForm] = []
        self.body.configure(style="Back.TFrame")
        self.tabs = ttk.Notebook(self.body)
        self.tabs.pack(fill="both", expand=True)
        self.build()
        self.add_button("OK", self.accept, accent=True)
        self.add_button("Cancel", self.cancel)
        self.wrong = ttk.Label(self.foot, style="Error.TLabel")
        self.wrong.pack(side="left")
        self.bind("<Control-Return>", lambda _event: self.accept())

    def build(self) -> None:
        """Build one tab with all settings. Windows with more tabs override it."""
        self.add_form_tab("Settings", lambda setting: True)

    def add_form_tab(self, title: str, wanted: Callable[[Setting], bool], note: str = "") -> SettingsForm:
        """Add a tab with the settings wanted and a line of text above them."""
        px = self.ui.theme.px
        scroll = ScrollFrame(self.tabs, self.ui.theme)
        self.tabs.add(scroll, text=title)
        head = ttk.Label(scroll.inside, text=note, style="Back.TLabel", wraplength=px(740), justify="left")
        head.pack(fill="x", padx=px(14), pady=px(8 if note else 2))
        settings = [setting for setting in self.source.settings.values() if wanted(setting)]
        form = SettingsForm(scroll.inside, settings, self.source, self.ui)
        self.forms.append(form)
        return form

    def _changed(self, path: str) -> None:
        for form in self.forms:
            form.refresh([path])
        self.changed(path)

    def changed(self, path: str) -> None:
        """Handle a changed value."""

    def accept(self) -> None:
        """Pass the copy on and close, unless a text in it is not a valid value."""
        faults = self.source.faults()
        if faults:
            setting, fault = faults[0]
            self.wrong.configure(text=f"{setting.title}: {fault.message}")
            for index, form in enumerate(self.forms):
                if setting.path in form.rows:
                    self.tabs.select(index)  # type: ignore[no-untyped-call]
                    self.update_idletasks()
                    form.focus(setting.path)
            return
        self.destroy()
        self._done(self.source.config)

    def open(self) -> None:
        """Show it with the first input focused."""
        shown = (row.input.focus_widget for row in self.forms[0].rows.values() if row.shown)
        self.present(next(shown, None))
