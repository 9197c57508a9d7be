"""When samples are made, and of what."""

from __future__ import annotations

from collections.abc import Iterable
from tkinter import ttk
from typing import cast

from modules.ui.items.ItemDialog import ItemDialog
from modules.ui.items.ItemTable import Column, ItemTable
from modules.ui.pages.DataPage import CHECK
from modules.ui.pages.FormPage import FormPage
from modules.ui.state.ItemList import ItemList
from modules.ui.widgets.tk_support import elide_middle
from modules.util.config.SampleConfig import SampleConfig

_WATCHED = {"samples", "sample_definition_file_name"}
AUTO = "auto"
"""What a sample leaves to the model family."""


class SamplingPage(FormPage):
    """Prompts above the settings of the section."""

    def add_before(self, parent: ttk.Frame) -> None:
        px = self.ui.theme.px
        self.samples: ItemList[SampleConfig] = ItemList(
            self.ui.state, SampleConfig, "samples", "sample_definition_file_name"
        )
        card = ttk.Frame(parent, padding=(px(14), px(10)))
        card.pack(fill="x", padx=px(12), pady=(0, px(12)))
        ttk.Label(card, text="Samples", style="Bold.TLabel").pack(anchor="w", pady=(0, px(6)))
        self.table = ItemTable(
            card,
            self.ui,
            self.samples,
            (
                Column("", 34, lambda s: CHECK if s.enabled else ""),
                Column(
                    "Prompt",
                    330,
                    lambda s: elide_middle(" ".join(s.prompt.split()), 90) or "(empty)",
                    stretch=True,
                ),
                Column("Size", 100, lambda s: f"{s.width or AUTO} \u00d7 {s.height or AUTO}"),
                Column("Seed", 80, lambda s: "other" if s.random_seed else str(s.seed)),
                Column("Steps", 60, lambda s: str(s.diffusion_steps or AUTO)),
                Column("CFG", 60, lambda s: AUTO if s.cfg_scale is None else f"{s.cfg_scale:g}"),
                Column("Sampler", 110, lambda s: s.noise_scheduler.label),
            ),
            self.open_sample,
            (("Add\u2026", self.add, "A new prompt"),),
        )
        self.table.pack(fill="both", expand=True)
        self.table.refresh()

    def refresh(self, paths: Iterable[str] | None) -> None:
        super().refresh(paths)
        if paths is None or not _WATCHED.isdisjoint(paths):
            self.table.refresh()

    def opened(self) -> None:
        self.table.refresh()

    def open_sample(self, index: int) -> ItemDialog:
        """The window of a sample."""
        window = ItemDialog(
            self.ui, f"Sample {index + 1}", self.samples.items()[index],
            lambda sample: self.samples.replace(index, cast(SampleConfig, sample)),
        )  # fmt: skip
        window.open()
        return window

    def add(self) -> None:
        """Open the window of a new sample; it begins as the last one."""
        items = self.samples.items()
        fresh = items[-1].copy_of() if items else SampleConfig()
        fresh.prompt, fresh.enabled = "", True
        ItemDialog(
            self.ui, "New sample", fresh, lambda sample: self._added(cast(SampleConfig, sample))
        ).open()

    def _added(self, sample: SampleConfig) -> None:
        self.table.select([self.samples.add([sample])])

    def focus_field(self, path: str) -> bool:
        if path == "samples":
            self.table.tree.focus_set()
            return True
        return super().focus_field(path)
