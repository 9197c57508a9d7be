"""The panel of queued runs."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable
from functools import partial
from tkinter import ttk

from modules.runner.RunDirectory import RunDirectory
from modules.runner.RunQueue import QueueEntry, QueueRunner
from modules.ui.Services import QueueWatch
from modules.ui.texts import run as words
from modules.ui.Ui import Ui
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.tk_support import (
    IDLE,
    bind_row_keys,
    cancel_timer,
    fit_middle,
    later,
    listen_while_alive,
)
from modules.util.errors import UserError

TICK_MS = 1000


class QueueWork:
    """Works through the queue in a thread while the window is open.

    Args:
        runner: the queue, which starts its runs.
        started: called with the folder of each started run.
    """

    def __init__(self, ui: Ui, runner: QueueRunner, started: Callable[[str], None]) -> None:
        self.runner = runner
        self.entries: list[QueueEntry] = []
        self._ui, self._started = ui, started
        self._listeners: list[Callable[[], None]] = []
        self._busy = False
        self._failed = False
        self._timer = later(ui.root, TICK_MS, self._tick)

    def _tick(self) -> None:
        self._timer = later(self._ui.root, TICK_MS, self._tick)
        if not self._busy and (self.runner.active or self._listeners or self.runner.queue.path.exists()):
            self.look()

    def look(self) -> None:
        """Process the queue now."""
        if self._busy:
            return
        self._busy = True
        self._ui.work(self._work, self._done, self._wrong)

    def _work(self) -> list[QueueEntry]:
        self.runner.tick()
        return self.runner.queue.entries()

    def _done(self, entries: list[QueueEntry]) -> None:
        self._busy = self._failed = False
        before = {entry.id for entry in self.entries if entry.state == "running"}
        changed, self.entries = entries != self.entries, entries
        for entry in entries:
            if entry.state == "running" and entry.id not in before:
                self._started(entry.run_dir)
        if changed:
            for listener in list(self._listeners):
                listener()

    def _wrong(self, error: Exception) -> None:
        self._busy = False
        if not self._failed:  # once, not every second
            self._failed = True
            self.runner.active = False
            self._ui.error(error)

    def listen(self, call: Callable[[], None], widget: tk.Misc) -> None:
        """Call ``call`` after changes as long as ``widget`` exists."""
        listen_while_alive(self._listeners, call, widget)

    def close(self) -> None:
        cancel_timer(self._ui.root, self._timer)


class QueuePanel(ttk.Frame):
    """The list of queued runs and its buttons."""

    def __init__(self, parent: tk.Misc, ui: Ui, work: QueueWatch) -> None:
        px = ui.theme.px
        super().__init__(parent, padding=px(8))
        self._ui, self._work = ui, work
        self.queue = work.runner.queue
        row = FlowFrame(self, px(4))
        row.pack(fill="x", pady=(0, px(6)))
        for text, command in (
            (words.ADD, self.add),
            (words.UP, lambda: self._move(-1)),
            (words.DOWN, lambda: self._move(1)),
            (words.AGAIN, lambda: self._each(self.queue.requeue)),
            (words.REMOVE, lambda: self._each(self.queue.remove)),
            (words.CLEAR_ENDED, self.queue.clear_ended),
        ):
            button = ttk.Button(row, text=text, command=partial(self._do, command))
            row.add(button)
        self._go = ttk.Button(row, text=words.START_QUEUE, style="Accent.TButton", command=self.toggle)
        row.add(self._go)
        self.tree = ttk.Treeview(self, columns=("state", "folder", "note"), height=5, selectmode="browse")
        for name, title, width in (
            ("#0", words.COLUMN_RUN, 150),
            ("state", words.COLUMN_STATE, 80),
            ("folder", words.COLUMN_FOLDER, 260),
        ):
            self.tree.heading(name, text=title, anchor="w")
            self.tree.column(name, width=px(width), stretch=name == "folder")
        self.tree.heading("note", text=words.COLUMN_NOTE, anchor="w")
        self.tree.column("note", width=px(200))
        self.tree.pack(fill="both", expand=True)
        bind_row_keys(self.tree)
        self.tree.bind("<Double-Button-1>", self._watch)
        self.tree.bind("<Return>", self._watch)
        self.tree.bind("<Configure>", lambda _event: later(self, IDLE, self._show))
        work.listen(self._show, self)
        self._show()
        work.look()

    def _do(self, command: Callable[[], object]) -> None:
        with self._ui.errors_shown():
            command()
        self._work.look()

    def add(self) -> None:
        """Append the current settings to the queue."""
        state, errors = self._ui.state, self._ui.services.check.errors_of_settings()
        if errors:
            message = words.ONE_OF.format(message=errors[0].message, count=len(errors))
            raise UserError(message, hint=words.FIX_FIRST)
        folder = RunDirectory(state.config.workspace_dir)
        self.queue.add(folder, state.config.to_dict())
        self._ui.status(words.ADDED.format(folder=folder.path, time=time.strftime("%H:%M")))

    def toggle(self) -> None:
        """Start working through the queue, or stop after the current run."""
        self._work.runner.active = not self._work.runner.active
        self._show()
        self._work.look()

    def _chosen(self) -> str | None:
        chosen = self.tree.selection()
        return chosen[0] if chosen else None

    def _each(self, command: Callable[[str], None]) -> None:
        if (chosen := self._chosen()) is not None:
            command(chosen)

    def _move(self, step: int) -> None:
        chosen = self._chosen()
        if chosen is not None:
            self.queue.move(chosen, max(0, self.tree.index(chosen) + step))

    def _watch(self, _event: object) -> None:
        chosen = self._chosen()
        for entry in self._work.entries:
            if entry.id == chosen:
                self._ui.services.run_actions.attach(entry.run_dir)

    def _show(self) -> None:
        chosen, theme = self._chosen(), self._ui.theme
        width = self.tree.column("folder", "width") - theme.px(16)
        self.tree.delete(*self.tree.get_children())
        for entry in self._work.entries:
            note = entry.note.partition("\n")[0]
            values = (entry.state, fit_middle(str(entry.run_dir), width, theme.fonts["text"]), note)
            self.tree.insert("", "end", entry.id, text=entry.title, values=values)
        if chosen is not None and self.tree.exists(chosen):
            self.tree.selection_set(chosen)
        self._go.configure(text=words.STOP_AFTER_THIS if self._work.runner.active else words.START_QUEUE)
