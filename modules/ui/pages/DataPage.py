"""The page of concepts and of how their images are prepared."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tkinter import ttk

from modules.ui.items.ConceptWindow import ConceptWindow
from modules.ui.items.ItemTable import Column, ItemTable
from modules.ui.pages.FormPage import FormPage
from modules.ui.state.folder_stats import count_images
from modules.ui.state.ItemList import ItemList
from modules.ui.state.pair_reports import concepts_of_output
from modules.ui.texts import data as words
from modules.ui.texts import lists
from modules.ui.widgets.drop import accept_drops, only_folders
from modules.util.config.ConceptConfig import ConceptConfig

CHECK = "\u2713"
_WATCHED = {"concepts", "concept_file_name"}


class DataPage(FormPage):
    """The list of concepts above the settings of the section."""

    def add_before(self, parent: ttk.Frame) -> None:
        px = self.ui.theme.px
        self._counts: dict[tuple[str, bool], int | None] = {}
        self._asked: set[tuple[str, bool]] = set()
        self.concepts: ItemList[ConceptConfig] = ItemList(
            self.ui.state, ConceptConfig, "concepts", "concept_file_name"
        )
        card = ttk.Frame(parent, padding=(px(14), px(10)))
        card.pack(fill="x", padx=px(12), pady=(0, px(12)))
        ttk.Label(card, text=words.CONCEPTS, style="Bold.TLabel").pack(anchor="w", pady=(0, px(6)))
        self.table = ItemTable(
            card,
            self.ui,
            self.concepts,
            (
                Column("", 34, lambda c: CHECK if c.enabled else ""),
                Column(words.COLUMN_NAME, 190, lambda c: c.name or Path(c.path).name or words.NO_FOLDER),
                Column(words.COLUMN_TYPE, 150, lambda c: c.type.label),
                Column(words.COLUMN_IMAGES, 80, self._count_text),
                Column(words.COLUMN_FOLDER, 300, lambda c: c.path, stretch=True, middle=True),
            ),
            self.open_concept,
            (
                (lists.ADD, self.add_folders, words.ADD_TIP),
                (words.ADD_PAIRS, self.add_pairs, words.ADD_PAIRS_TIP),
            ),
        )
        self.table.pack(fill="both", expand=True)
        accept_drops(self.table.tree, self._dropped)
        self._show()

    def add_to_form(self) -> None:
        self.usual = self.form.add_note(self.ui.state.settings["resolution"].group)
        self._tell_usual()

    # -- showing ---------------------------------------------------------------------------------------------

    def _tell_usual(self) -> None:
        family = self.ui.state.config.model_type
        self.usual.configure(
            text=words.USUAL_SIZE.format(family=family.label, pixels=family.spec.default_resolution)
        )

    def refresh(self, paths: Iterable[str] | None) -> None:
        super().refresh(paths)
        if paths is None or not _WATCHED.isdisjoint(paths):
            self._show()
        if paths is None or "model_type" in paths:
            self._tell_usual()

    def opened(self) -> None:
        self._asked.clear()  # folders may have changed meanwhile
        self._show()

    def _show(self) -> None:
        self.table.refresh(self._is_missing)
        wanted = {(c.path, c.include_subdirectories) for c in self.concepts.items()} - self._asked
        if wanted:
            self._asked |= wanted
            self.ui.work(lambda: {key: count_images(*key) for key in wanted}, self._counted)

    def _counted(self, counts: dict[tuple[str, bool], int | None]) -> None:
        self._counts.update(counts)
        if self.winfo_exists():
            self.table.refresh(self._is_missing)

    def _is_missing(self, concept: ConceptConfig) -> bool:
        return concept.enabled and self._counts.get((concept.path, concept.include_subdirectories), 1) is None

    def _count_text(self, concept: ConceptConfig) -> str:
        key = (concept.path, concept.include_subdirectories)
        if key not in self._counts:
            return "\u2026"
        count = self._counts[key]
        return words.MISSING if count is None else str(count)

    # -- hands -----------------------------------------------------------------------------------------------

    def open_concept(self, index: int) -> ConceptWindow:
        """Open the window of a concept."""
        window = ConceptWindow(
            self.ui, self.concepts.items()[index], lambda concept: self.concepts.replace(index, concept)
        )
        window.open()
        return window

    def add_folders(self) -> None:
        """Ask for a folder and make it a concept."""
        folder = self.ui.chooser.folder(words.ASK_IMAGES)
        if folder is not None:
            self.add([folder])

    def add(self, folders: Iterable[Path]) -> None:
        """Add a concept for each folder."""
        made = [ConceptConfig(name=folder.name, path=str(folder)) for folder in folders]
        if made:
            first = self.concepts.add(made)
            self.table.select([first])
            self.table.tree.focus_set()

    def add_pairs(self) -> None:
        """Ask for a folder finished by the pair tool and add its concepts."""
        folder = self.ui.chooser.folder(words.ASK_PAIRS)
        if folder is not None:
            self.concepts.add(concepts_of_output(folder))

    def _dropped(self, paths: list[Path]) -> None:
        with self.ui.errors_shown():
            self.add(only_folders(paths))

    def focus_field(self, path: str) -> bool:
        if path == "concepts":
            self.table.tree.focus_set()
            return True
        return super().focus_field(path)
