"""The page of the other computer: choose one, check the connection, start a run there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from tkinter import ttk

from modules.ui.form.CardBoard import wrapped_label
from modules.ui.form.inputs import choice_box
from modules.ui.pages.FormPage import FormPage
from modules.ui.remote.JobLine import JobLine
from modules.ui.texts import remote as words
from modules.ui.widgets.FlowFrame import FlowFrame


class RemotePage(FormPage):
    """Saved computers and buttons above the settings of the section."""

    def add_before(self, parent: ttk.Frame) -> None:
        px, tips, remote = self.ui.theme.px, self.ui.services.tooltips, self.ui.services.remote
        card = ttk.Frame(parent, padding=(px(14), px(10)))
        card.pack(fill="x", padx=px(12), pady=(0, px(12)))
        ttk.Label(card, text=words.COMPUTER, style="Bold.TLabel").pack(anchor="w", pady=(0, px(6)))
        how = wrapped_label(card, self.ui.theme, "Muted.TLabel", words.HOW)
        how.pack(anchor="w", pady=(0, px(8)))
        row = FlowFrame(card, px(6))
        row.pack(fill="x")
        row.add(ttk.Label(row, text=words.SAVED))
        self.saved = choice_box(row, self.ui.theme, (), 34)
        self.saved.bind("<<ComboboxSelected>>", lambda _event: self._choose())
        row.add(self.saved)
        tips.add(self.saved, words.SAVED_TIP)
        self.forget_button = self._button(row, words.FORGET, self._forget, words.FORGET_TIP)
        row = FlowFrame(card, px(6))
        row.pack(fill="x", pady=px(8))
        self.check = self._button(row, words.CHECK, remote.check, words.CHECK_TIP)
        self.start = self._button(row, words.START, remote.start, words.START_TIP)
        self.start.configure(style="Accent.TButton")
        self.job = JobLine(card, self.ui)
        self.job.pack(fill="x")
        remote.listen(self._show, self)

    def _button(self, row: FlowFrame, text: str, command: Callable[[], object], tip: str) -> ttk.Button:
        button = row.add_button(text, command)
        self.ui.services.tooltips.add(button, tip)
        return button

    def opened(self) -> None:
        self.ui.services.remote.load()
        self._show()

    def _show(self) -> None:
        remote = self.ui.services.remote
        names = [one.address() for one in remote.computers]
        self.saved.configure(values=names)
        now = self.ui.state.config.remote.address()
        self.saved.set(now if now in names else "")
        self.saved.selection_clear()
        for button, on in (
            (self.forget_button, now in names), (self.check, not remote.doing), (self.start, not remote.doing),
        ):  # fmt: skip
            button.state([("!" if on else "") + "disabled"])

    def refresh(self, paths: Iterable[str] | None) -> None:
        super().refresh(paths)
        self._show()

    def _choose(self) -> None:
        chosen = self.saved.current()
        if chosen >= 0:
            self.ui.services.remote.choose(self.ui.services.remote.computers[chosen])

    def _forget(self) -> None:
        now = self.ui.state.config.remote.address()
        for one in self.ui.services.remote.computers:
            if one.address() == now:
                self.ui.services.remote.forget(one)
