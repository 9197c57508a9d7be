"""A dialog to choose the contestants of an arena, their strengths and the number of images."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tkinter import ttk

from modules.project.Project import Project
from modules.project.proving import USUAL_QUESTIONS
from modules.ui.dialogs import Dialog
from modules.ui.form.inputs import choice_box
from modules.ui.texts import arena as words
from modules.ui.Ui import Ui
from modules.ui.widgets.tk_support import fit_middle

COUNTS = (20, 40, USUAL_QUESTIONS, 100, 200)
NAME_WIDTH = 300
MOST_STRENGTH = 10.0


@dataclass
class _Row:
    name: str
    chosen: tk.BooleanVar
    strengths: tk.StringVar | None


class CompareDialog(Dialog):
    """Asks for the contestants. Nothing happens before OK.

    Args:
        files: additional adapters to offer; those in ``chosen`` are preselected.
        take: called with the value for ``taste.py compare --between`` and the number of images.
    """

    def __init__(
        self,
        ui: Ui,
        project: Project,
        take: Callable[[str, int], None],
        files: Sequence[Path] = (),
        chosen: Sequence[Path] = (),
    ) -> None:
        super().__init__(ui, words.CONTESTANTS, width=520, scrolls=True)
        self._ui, self._take = ui, take
        self.rows: list[_Row] = []
        px = ui.theme.px
        self.body.columnconfigure(0, weight=1)
        head = ttk.Label(self.body, text=words.STRENGTHS_TIP, style="Small.TLabel", wraplength=px(480))
        head.grid(row=0, column=0, columnspan=2, sticky="w", pady=(0, px(6)))
        trained = [one.name for one in project.rounds() if one.trained]
        for name in [*reversed(trained), *(["start"] if project.file.model.adapter else [])]:
            self._add(name, not chosen and trained[-1:] == [name])
        for path in dict.fromkeys([*chosen, *files]):
            self._add(str(path), path in chosen)
        self._add("base", True, strengths=False)
        bottom = ttk.Frame(self.body)
        bottom.grid(row=1000, column=0, columnspan=2, sticky="ew", pady=(px(8), 0))
        ttk.Button(bottom, text=words.ADD_FILE, command=self._ask_file).pack(side="left")
        self.count = choice_box(bottom, ui.theme, [str(n) for n in COUNTS], 6)
        self.count.set(str(USUAL_QUESTIONS))
        self.count.pack(side="right")
        ttk.Label(bottom, text=words.IMAGES_OF_EACH).pack(side="right", padx=px(8))
        self.error = ttk.Label(self.body, style="Error.TLabel", wraplength=px(480))
        self.error.grid(row=1001, column=0, columnspan=2, sticky="w")
        self.compare = self.add_button(words.COMPARE, self._done, accent=True)
        self.add_button(words.CANCEL, self.cancel)
        self.present(self.compare)

    def _add(self, name: str, chosen: bool, strengths: bool = True) -> None:
        px, at = self._ui.theme.px, len(self.rows) + 1
        row = _Row(name, tk.BooleanVar(self, chosen), tk.StringVar(self, "1") if strengths else None)
        self.rows.append(row)
        text = fit_middle(name, px(NAME_WIDTH), self._ui.theme.fonts["text"])
        ttk.Checkbutton(self.body, text=text, variable=row.chosen).grid(
            row=at, column=0, sticky="w", pady=px(2)
        )
        if row.strengths is not None:
            entry = ttk.Entry(
                self.body, textvariable=row.strengths, width=12, font=self._ui.theme.fonts["text"]
            )
            entry.grid(row=at, column=1, sticky="e", pady=px(2))

    def _ask_file(self) -> None:
        found = self._ui.chooser.file(words.ASK_ADAPTER, parent=self)
        if found is not None:
            self._add(str(found), True)

    def between(self) -> list[str]:
        """The chosen contestants, each with its strengths.

        Raises:
            ValueError: a strength is not a number.
        """
        found: list[str] = []
        for row in self.rows:
            if not row.chosen.get():
                continue
            for text in row.strengths.get().split(",") if row.strengths is not None else ["1"]:
                strength = float(text)
                if not -MOST_STRENGTH <= strength <= MOST_STRENGTH:
                    raise ValueError(text)
                found.append(row.name if strength == 1.0 else f"{row.name}@{strength:g}")
        return list(dict.fromkeys(found))

    def _say(self, fault: str) -> None:
        self.error.configure(text=fault)
        self.see(self.error)

    def _done(self) -> None:
        try:
            between = self.between()
        except ValueError:
            self._say(words.BAD_STRENGTH)
            return
        if len(between) < 2:
            self._say(words.TOO_FEW)
            return
        count = int(self.count.get())
        self.destroy()
        self._take(",".join(between), count)
