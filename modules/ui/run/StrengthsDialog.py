"""A dialog to choose adapters, prompts and strengths for a grid of images."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from pathlib import Path
from tkinter import ttk

from modules.runner.run_list import RunSummary
from modules.ui.dialogs import Dialog
from modules.ui.state.runs.strengths import StrengthImages, read_prompts, read_strengths
from modules.ui.texts import runs as words
from modules.ui.Ui import Ui
from modules.ui.widgets.theme import style_text
from modules.ui.widgets.tk_support import fit_middle
from modules.util.errors import UserError

USUAL = "0, 0.5, 1, 1.5"
NAME_WIDTH = 440


class StrengthsDialog(Dialog):
    """Asks for the content of a grid. Nothing happens before OK.

    Args:
        run: whose settings the images are made with.
        adapters: files to choose from; the first is preselected.
        prompts: prompts to choose from.
        take: called with the choice.
    """

    def __init__(
        self,
        ui: Ui,
        run: RunSummary,
        adapters: Sequence[Path],
        prompts: Sequence[str],
        take: Callable[[StrengthImages], None],
    ) -> None:
        super().__init__(ui, words.STRENGTHS_TITLE, width=520, scrolls=True)
        px, self._run, self._take = ui.theme.px, run, take
        self.body.columnconfigure(0, weight=1)
        self.chosen = {path: tk.BooleanVar(self, path == adapters[0]) for path in adapters}
        for path, variable in self.chosen.items():
            text = fit_middle(path.name, px(NAME_WIDTH), ui.theme.fonts["text"])
            ttk.Checkbutton(self.body, text=text, variable=variable).grid(sticky="w", pady=px(1))
        ttk.Label(self.body, text=words.STRENGTHS_PROMPTS).grid(sticky="w", pady=(px(8), px(2)))
        self.prompts = tk.Text(self.body, height=4, width=40, wrap="word", font=ui.theme.fonts["text"])
        style_text(ui.theme, self.prompts)
        self.prompts.insert("1.0", "\n".join(prompts))
        self.prompts.grid(sticky="ew")
        self.prompts.bind("<Tab>", self._leave)
        ttk.Label(self.body, text=words.STRENGTHS_WHICH).grid(sticky="w", pady=(px(8), px(2)))
        self.strengths = ttk.Entry(self.body, font=ui.theme.fonts["text"])
        self.strengths.insert(0, USUAL)
        self.strengths.grid(sticky="ew")
        self.strengths.bind("<Return>", lambda _event: self._done())
        self.error = ttk.Label(self.body, style="Error.TLabel", wraplength=px(480))
        self.error.grid(sticky="w", pady=(px(6), 0))
        self.make = self.add_button(words.STRENGTHS_MAKE, self._done, accent=True)
        self.add_button(words.STRENGTHS_CANCEL, self.cancel)
        self.present(self.strengths)

    def _leave(self, _event: object) -> str:
        self.strengths.focus_set()
        return "break"

    def _say(self, fault: str) -> None:
        self.error.configure(text=fault)
        self.see(self.error)

    def _done(self) -> None:
        adapters = tuple(path for path, variable in self.chosen.items() if variable.get())
        try:
            wanted = StrengthImages(
                self._run.path, self._run.config, adapters,
                read_prompts(self.prompts.get("1.0", "end")), read_strengths(self.strengths.get()),
            )  # fmt: skip
        except UserError as error:
            self._say(str(error))
            return
        if not adapters:
            self._say(words.STRENGTHS_NO_ADAPTER)
            return
        self.destroy()
        self._take(wanted)
