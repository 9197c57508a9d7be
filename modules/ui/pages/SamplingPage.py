"""The page of sample prompts and of when samples are made."""

from __future__ import annotations

from collections.abc import Iterable
from tkinter import ttk
from typing import cast

from modules.ui.items.ItemTable import Column, ItemTable
from modules.ui.items.SampleWindow import SampleWindow
from modules.ui.pages.DataPage import CHECK
from modules.ui.pages.FormPage import FormPage
from modules.ui.state.ItemList import ItemList
from modules.ui.texts import lists
from modules.ui.texts import sampling as words
from modules.ui.widgets.tk_support import elide_middle
from modules.util.config.SampleConfig import SampleConfig

_WATCHED = {"samples", "sample_definition_file_name"}


class SamplingPage(FormPage):
    """Prompts above the settings of the section."""

    def add_before(self, parent: ttk.Frame) -> None:
        px = self.ui.theme.px
        self.samples: ItemList[SampleConfig] = ItemList(
            self.ui.state, SampleConfig, "samples", "sample_definition_file_name"
        )
        card = ttk.Frame(parent, padding=(px(14), px(10)))
        card.pack(fill="x", padx=px(12), pady=(0, px(12)))
        ttk.Label(card, text=words.SAMPLES, style="Bold.TLabel").pack(anchor="w", pady=(0, px(6)))
        self.table = ItemTable(
            card,
            self.ui,
            self.samples,
            (
                Column("", 34, lambda s: CHECK if s.enabled else ""),
                Column(
                    words.COLUMN_PROMPT,
                    330,
                    lambda s: elide_middle(" ".join(s.prompt.split()), 90) or words.EMPTY_PROMPT,
                    stretch=True,
                ),
                Column(
                    words.COLUMN_SIZE,
                    100,
                    lambda s: f"{s.width or words.AUTO} \u00d7 {s.height or words.AUTO}",
                ),
                Column(words.COLUMN_SEED, 80, lambda s: words.OTHER_SEED if s.random_seed else str(s.seed)),
                Column(words.COLUMN_STEPS, 60, lambda s: str(s.diffusion_steps or words.AUTO)),
                Column(
                    words.COLUMN_CFG, 60, lambda s: words.AUTO if s.cfg_scale is None else f"{s.cfg_scale:g}"
                ),
                Column(words.COLUMN_SAMPLER, 110, lambda s: s.noise_scheduler.label),
            ),
            self.open_sample,
            ((lists.ADD, self.add, words.ADD_TIP),),
        )
        self.table.pack(fill="both", expand=True)
        self.table.refresh()

    def refresh(self, paths: Iterable[str] | None) -> None:
        super().refresh(paths)
        if paths is None or not _WATCHED.isdisjoint(paths):
            self.table.refresh()

    def opened(self) -> None:
        self.table.refresh()

    def open_sample(self, index: int) -> SampleWindow:
        """Open the window of a sample."""
        window = SampleWindow(
            self.ui, words.SAMPLE.format(number=index + 1), self.samples.items()[index],
            lambda sample: self.samples.replace(index, cast(SampleConfig, sample)),
        )  # fmt: skip
        window.open()
        return window

    def add(self) -> None:
        """Open the window of a new sample, initially a copy of the last one."""
        items = self.samples.items()
        fresh = items[-1].copy_of() if items else SampleConfig()
        fresh.prompt, fresh.enabled = "", True
        SampleWindow(self.ui, words.NEW_SAMPLE, fresh, self.table.append).open()

    def focus_field(self, path: str) -> bool:
        if path == "samples" or path.startswith("samples["):
            self.table.tree.focus_set()
            return True
        return super().focus_field(path)
