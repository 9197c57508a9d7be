"""The page of the adapter, and of embeddings that are trained with it or alone."""

from __future__ import annotations

from collections.abc import Iterable
from tkinter import ttk
from typing import cast

from modules.ui.items.ItemDialog import ItemDialog
from modules.ui.items.ItemTable import Column, ItemTable
from modules.ui.pages.FormPage import FormPage
from modules.ui.state.ItemList import ItemList
from modules.ui.texts import lists
from modules.ui.texts import lora as words
from modules.ui.widgets.tk_support import elide_middle
from modules.util.config.embedding.EmbeddingConfig import EmbeddingConfig

_FIELD = "additional_embeddings"


def _tokens(one: EmbeddingConfig) -> str:
    if one.model_name:
        return words.IN_FILE
    return words.AS_TEXT if one.token_count is None else str(one.token_count)


class LoraPage(FormPage):
    """The settings of the adapter and embeddings, and the list of additional embeddings."""

    def add_to_form(self) -> None:
        self.embeddings: ItemList[EmbeddingConfig] = ItemList(self.ui.state, EmbeddingConfig, _FIELD)
        frame = ttk.Frame(self.form.add_card(words.LIST))
        frame.grid(row=1, column=0, columnspan=4, sticky="ew")
        self.table = ItemTable(
            frame,
            self.ui,
            self.embeddings,
            (
                Column(words.COLUMN_PLACEHOLDER, 110, lambda e: e.placeholder),
                Column(
                    words.COLUMN_START,
                    140,
                    lambda e: elide_middle(e.model_name or e.initial_embedding_text, 24),
                    stretch=True,
                ),
                Column(words.COLUMN_TOKENS, 80, _tokens),
                Column(words.COLUMN_TRAINED, 70, lambda e: words.YES if e.train else words.NO),
            ),
            self.open_embedding,
            ((lists.ADD, self.add, words.ADD_TIP),),
            rows=5,
        )
        self.table.pack(fill="both", expand=True)
        self.table.refresh()

    def refresh(self, paths: Iterable[str] | None) -> None:
        super().refresh(paths)
        if paths is None or _FIELD in paths:
            self.table.refresh()

    def opened(self) -> None:
        self.table.refresh()

    def open_embedding(self, index: int) -> ItemDialog:
        """Open the window of an embedding."""
        one = self.embeddings.items()[index]
        window = ItemDialog(
            self.ui, words.EMBEDDING.format(placeholder=one.placeholder), one,
            lambda edited: self.embeddings.replace(index, cast(EmbeddingConfig, edited)),
        )  # fmt: skip
        window.open()
        return window

    def add(self) -> None:
        """Open the window of a new embedding."""
        ItemDialog(self.ui, words.NEW_EMBEDDING, EmbeddingConfig(), self.table.append).open()

    def focus_field(self, path: str) -> bool:
        if path.startswith(_FIELD):
            self.table.tree.focus_set()
            return True
        return super().focus_field(path)
