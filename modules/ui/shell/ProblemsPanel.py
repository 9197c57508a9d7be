"""The list of everything that is wrong with the settings. Entries jump to their fields."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from tkinter import ttk

from modules.ui.state.ConfigState import Problem
from modules.ui.texts.window import problem_counts
from modules.ui.Ui import Ui

MAX_ROWS = 6


class ProblemsPanel(ttk.Frame):
    """A panel above the bottom bar."""

    def __init__(self, parent: tk.Misc, ui: Ui, close: Callable[[], None]) -> None:
        px = ui.theme.px
        super().__init__(parent, padding=(px(12), px(6)))
        self._ui = ui
        self._problems: list[Problem] = []
        head = ttk.Frame(self)
        head.pack(fill="x")
        self._title = ttk.Label(head, style="Bold.TLabel")
        self._title.pack(side="left")
        ttk.Button(head, text="Close", style="Flat.TButton", command=close).pack(side="right")
        self.tree = ttk.Treeview(self, columns=("where", "what"), show="tree", height=3, selectmode="browse")
        self.tree.column("#0", width=px(30), stretch=False)
        self.tree.column("where", width=px(210), stretch=False)
        self.tree.pack(fill="both", expand=True)
        for name in ("<Double-Button-1>", "<Return>", "<ButtonRelease-1>"):
            self.tree.bind(name, self._go)
        self.tree.bind("<Escape>", lambda _event: close())
        ui.theme.on_change(self._restyle, self)

    def _restyle(self) -> None:
        palette = self._ui.theme.palette
        self.tree.tag_configure("error", foreground=palette.error)
        self.tree.tag_configure("warning", foreground=palette.warning)

    def show(self, problems: list[Problem]) -> None:
        """Replace the list."""
        if problems == self._problems:
            return
        self._problems = problems
        errors = sum(not problem.warning for problem in problems)
        self._title.configure(text=problem_counts(errors, len(problems) - errors))
        self.tree.delete(*self.tree.get_children())
        for index, problem in enumerate(problems):
            setting = self._ui.state.settings.get(problem.path)
            where = setting.title if setting is not None else problem.path
            words = f"{problem.message}  \u2192 {problem.hint}" if problem.hint else problem.message
            tag = "warning" if problem.warning else "error"
            sign = "!" if problem.warning else "\u2716"
            self.tree.insert("", "end", str(index), text=sign, values=(where, words), tags=(tag,))
        self.tree.configure(height=max(1, min(MAX_ROWS, len(problems))))

    def _go(self, _event: object) -> str | None:
        chosen = self.tree.selection()
        if chosen:
            path = self._problems[int(chosen[0])].path
            if path:
                self._ui.jump(path)
        return None

    def focus_list(self) -> None:
        """Select the first entry and focus the list."""
        first = self.tree.get_children()
        if first:
            self.tree.selection_set(first[0])
            self.tree.focus(first[0])
        self.tree.focus_set()
