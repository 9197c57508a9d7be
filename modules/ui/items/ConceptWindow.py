"""The window of one concept: its settings, image and prompt transforms, and the contents of its folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from tkinter import ttk
from typing import cast

from modules.ui.form.SettingsForm import SettingsForm
from modules.ui.ImageWindow import ImageWindow, ShownImage
from modules.ui.items.ItemDialog import ItemDialog
from modules.ui.state.folder_stats import FolderStats, folder_stats, stats_lines
from modules.ui.state.pair_reports import is_pair_side
from modules.ui.texts import data as words
from modules.ui.Ui import Ui
from modules.ui.widgets.ImagePrefetcher import prefetcher_of
from modules.ui.widgets.ThumbGrid import ThumbGrid
from modules.ui.widgets.tk_support import later
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.settings import Setting
from modules.util.errors import UserError

_OF_PROMPTS = ("text.prompt", "text.caption", "text.missing_caption", "text.trigger_word")
_PAIR_OFF = ("image_variations", "text_variations")


class ConceptWindow(ItemDialog):
    """Edits a concept."""

    def __init__(self, ui: Ui, concept: ConceptConfig, done: Callable[[ConceptConfig], None]) -> None:
        self._looked = ""
        super().__init__(
            ui,
            words.CONCEPT.format(name=concept.name or concept.path).strip(),
            concept,
            lambda item: done(cast(ConceptConfig, item)),
        )
        self._follow_type()
        self._look()

    @property
    def concept(self) -> ConceptConfig:
        """The copy being edited."""
        return cast(ConceptConfig, self.source.config)

    def build(self) -> None:
        self.add_form_tab(words.GENERAL_TAB, lambda setting: "." not in setting.path)
        self._notes: list[ttk.Label] = []
        self._augmenting: list[SettingsForm] = []
        for title, prefix in ((words.IMAGES_TAB, "image."), (words.PROMPTS_TAB, "text.")):
            form = self.add_form_tab(title, partial(_is_below, prefix), " ")
            self._augmenting.append(form)
            self._notes.append(cast(ttk.Label, form.board.master.winfo_children()[0]))
        self._folder_tab()

    def _folder_tab(self) -> None:
        px = self.ui.theme.px
        frame = ttk.Frame(self.tabs, padding=px(12))
        self.tabs.add(frame, text=words.FOLDER_TAB)
        self.stats = ttk.Label(frame, justify="left", wraplength=px(740), text=words.LOOKING)
        self.stats.pack(anchor="w", pady=(0, px(8)))
        self._prefetcher = prefetcher_of(
            self, self.ui.pump, lambda path: self.grid_view.arrived(path), 64 * 2**20
        )
        self.grid_view = ThumbGrid(frame, self._prefetcher, on_best=self._enlarge, cell=px(150))
        self.grid_view.pack(fill="both", expand=True)
        self.tabs.bind("<<NotebookTabChanged>>", lambda _event: later(self, 50, self._want))

    # -- changes ---------------------------------------------------------------------------------------------

    def changed(self, path: str) -> None:
        if path == "type":
            self._follow_type()
        if path in ("path", "include_subdirectories", "text.caption_extension"):
            self._look()

    def _follow_type(self) -> None:
        pair = is_pair_side(self.concept)
        for note in self._notes:
            note.configure(text=words.OFF_FOR_PAIRS if pair else "")
        for form in self._augmenting:
            for row in form.rows.values():
                # the source of prompts still matters for pairs
                row.input.enable(not pair or row.setting.path.startswith(_OF_PROMPTS))
        for name in _PAIR_OFF:
            self.forms[0].rows[name].input.enable(not pair)

    def _look(self) -> None:
        path, inner = self.concept.path, self.concept.include_subdirectories
        extension = self.concept.text.caption_extension
        wanted = f"{path}|{inner}|{extension}"
        if wanted == self._looked:
            return
        self._looked = wanted
        self.stats.configure(text=words.LOOKING)
        self.ui.work(
            lambda: folder_stats(path, inner, extension),
            lambda found: self._found(wanted, found),
            lambda error: self._not_found(wanted, error),
        )

    def _found(self, wanted: str, stats: FolderStats) -> None:
        if self.winfo_exists() and wanted == self._looked:
            self.stats.configure(text="\n".join(stats_lines(stats)), style="TLabel")
            self.grid_view.show(stats.first, [path.name for path in stats.first])
            self._want()

    def _not_found(self, wanted: str, error: Exception) -> None:
        if not isinstance(error, (UserError, OSError)):
            self.ui.error(error)
        if self.winfo_exists() and wanted == self._looked:
            self.stats.configure(text=str(error), style="Error.TLabel")
            self.grid_view.show([])

    # -- preview ---------------------------------------------------------------------------------------------

    def _want(self) -> None:
        if self.grid_view.winfo_ismapped():
            self._prefetcher.want(self.grid_view.in_sight())

    def _enlarge(self, index: int) -> None:
        shown = [ShownImage(path) for path in self.grid_view.paths if isinstance(path, Path)]
        ImageWindow(self.ui, shown, index, self)


def _is_below(prefix: str, setting: Setting) -> bool:
    return setting.path.startswith(prefix)
