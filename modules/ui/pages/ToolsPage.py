"""Tools besides training: pairs, import, help."""

from __future__ import annotations

import tkinter as tk
import webbrowser
from collections.abc import Callable
from pathlib import Path
from tkinter import ttk

from modules.tools.catalog import CAPTION_EDITS, CAPTION_TOOLS, DATASET_TOOLS, MASK_TOOLS, MODEL_TOOLS, UPDATE
from modules.tools.ToolSpec import ToolSpec
from modules.ui.demo.DemoOffer import open_demo
from modules.ui.form.CardBoard import CardBoard, wrapped_label
from modules.ui.pages.Page import Page
from modules.ui.pages.PageSpec import PageSpec
from modules.ui.pair_windows import open_pair_tool_here
from modules.ui.texts import tools as words
from modules.ui.texts.window import KEYS
from modules.ui.Ui import Ui
from modules.ui.widgets.ScrollFrame import ScrollFrame
from modules.util.config.SecretsConfig import SECRETS_NAME
from modules.util.program_files import DOCS

Tool = tuple[str, str, Callable[[], object]]


class ToolsPage(Page):
    """Cards with buttons."""

    def __init__(self, parent: tk.Misc, ui: Ui, spec: PageSpec) -> None:
        super().__init__(parent, ui, spec)
        scroll = ScrollFrame(self, ui.theme)
        scroll.pack(fill="both", expand=True)
        self.add_head(scroll.inside)
        board = CardBoard(scroll.inside, ui.theme)
        board.pack(fill="x")
        files, settings = ui.services.files, ui.services.store.folder
        self._card(board, words.PAIRS, (
            (words.DEMO, words.DEMO_ABOUT, lambda: open_demo(ui)),
            (words.PAIR_TOOL, words.PAIR_TOOL_ABOUT, lambda: open_pair_tool_here(ui)),
        ))  # fmt: skip
        self._card(board, words.IMAGES, tuple(self._tool(spec) for spec in DATASET_TOOLS))
        captions = tuple(self._tool(spec) for spec in (*CAPTION_TOOLS, *CAPTION_EDITS))
        self._card(board, words.CAPTIONS, ((words.EDITOR, words.EDITOR_ABOUT, self._captions), *captions))
        self._card(board, words.MASKS, tuple(self._tool(spec) for spec in MASK_TOOLS))
        self._card(board, words.MODELS, tuple(self._tool(spec) for spec in MODEL_TOOLS))
        self._card(board, words.OTHER_PROGRAMS, (
            (words.IMPORT, words.IMPORT_ABOUT, files.ask_import),
        ))  # fmt: skip
        self._card(board, words.ACCOUNTS, (
            (words.HUGGING_FACE, words.HUGGING_FACE_ABOUT, self._account),
        ))  # fmt: skip
        self._card(board, words.HELP, (
            (words.ALL_SETTINGS, words.ALL_SETTINGS_ABOUT, lambda: self._open(DOCS / "config.md")),
            (words.SETTINGS_FOLDER, words.SETTINGS_FOLDER_ABOUT, lambda: self._open(settings)),
            self._tool(UPDATE),
        ))  # fmt: skip
        self._keys(board)

    def _card(self, board: CardBoard, title: str, tools: tuple[Tool, ...]) -> None:
        card, px = board.add(title), self.ui.theme.px
        card.columnconfigure(1, minsize=0)
        for row, (text, about, command) in enumerate(tools, 1):
            button = ttk.Button(card, text=text, command=command, width=20)
            button.grid(row=row, column=1, sticky="w", pady=px(3), padx=(0, px(10)))
            label = wrapped_label(card, self.ui.theme, "Muted.TLabel", about, taken=235)
            label.grid(row=row, column=2, sticky="w")

    def _keys(self, board: CardBoard) -> None:
        card, px = board.add(words.KEYS), self.ui.theme.px
        for row, (keys, meaning) in enumerate(KEYS, 1):
            label = ttk.Label(card, text=keys, wraplength=px(200), justify="left")
            label.grid(row=row, column=1, sticky="w", pady=px(2), padx=(0, px(12)))
            about = wrapped_label(card, self.ui.theme, "Muted.TLabel", meaning, taken=225)
            about.grid(row=row, column=2, sticky="w")

    def _tool(self, spec: ToolSpec) -> Tool:
        return words.ELLIPSIS.format(title=spec.title), spec.about, lambda: self._open_tool(spec)

    def _open_tool(self, spec: ToolSpec) -> None:
        from modules.ui.shell.ToolWindow import ToolWindow

        window = ToolWindow(self.ui, spec)
        inputs = list(window.inputs.values())
        window.present(inputs[0] if inputs else window.buttons[-1])

    def _captions(self) -> None:
        from modules.ui.captions.windows import open_captions

        folder = self.ui.chooser.folder(words.EDITOR_FOLDER, parent=self)
        if folder is not None:
            open_captions(self.ui.root, self.ui.theme, folder)

    def _account(self) -> None:
        from modules.ui.shell.AccountDialog import AccountDialog

        dialog = AccountDialog(self.ui, self.ui.services.store.folder / SECRETS_NAME)
        dialog.present(dialog.entry)

    def _open(self, path: Path) -> None:
        self.ui.status(f"{path}")
        webbrowser.open(path.absolute().as_uri())
