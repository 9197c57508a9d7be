"""The page of preference training: settings, values derived from them, and pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tkinter import ttk
from typing import TYPE_CHECKING

from modules.spec.starting_values import STARTING_VALUES
from modules.ui.dialogs import show_notes
from modules.ui.form.CardBoard import wrapped_label
from modules.ui.pages.FormPage import FormPage
from modules.ui.pages.online_cards import LIST, OnlineCards
from modules.ui.pair_windows import open_pair_tool_here
from modules.ui.state.ConfigState import Problem
from modules.ui.state.ItemList import ItemList
from modules.ui.state.pair_reports import bucket_report, check_pairs, concept_pairs
from modules.ui.texts import rlhf as words
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.resolution import parse_resolutions
from modules.util.enum.choices import DPOSequentialStrategy
from modules.util.enum.DPOExecutionMode import DPOExecutionMode
from modules.util.enum.DPORefMode import DPORefMode
from modules.util.errors import UserError

if TYPE_CHECKING:
    from modules.util.config.TrainConfig import TrainConfig

PAPER_FACTOR = 2.0
"""The Diffusion-DPO paper's code halves beta before multiplying it by the margin."""


class RlhfPage(FormPage):
    """The form, and cards for what can be derived and checked."""

    def add_to_form(self) -> None:
        px = self.ui.theme.px
        self.concepts: ItemList[ConceptConfig] = ItemList(
            self.ui.state, ConceptConfig, "concepts", "concept_file_name"
        )
        pairs = self.form.add_card(words.PAIRS_CARD, first=True)
        self.kind = wrapped_label(pairs, self.ui.theme)
        self.kind.grid(row=1, column=0, columnspan=4, sticky="w", pady=(0, px(6)))
        self._pair_buttons(pairs)
        self.paper, self.memory = self.form.add_note("Loss"), self.form.add_note("Memory")
        self.online = OnlineCards(self.ui, self.form)
        self.online.changed = lambda: self.show_problems(self._problems)
        self._problems: Mapping[str, Problem] = {}
        self.online.refresh(None)
        self.derive()

    def _pair_buttons(self, card: ttk.Frame) -> None:
        px, tips = self.ui.theme.px, self.ui.services.tooltips
        buttons: tuple[tuple[str, Callable[[], object], str], ...] = (
            (words.PAIR_TOOL, self.open_pair_tool, words.PAIR_TOOL_TIP),
            (words.REVIEW, self.review_pairs, words.REVIEW_TIP),
            (words.CHECK, self.check, words.CHECK_TIP),
            (words.BUCKETS, self.buckets, words.BUCKETS_TIP),
        )
        self.pair_buttons = {}
        for index, (text, command, tip) in enumerate(buttons):
            button = ttk.Button(card, text=text, command=command)
            button.grid(row=2 + index // 2, column=index % 2 + 1, sticky="ew", padx=(0, px(6)), pady=px(3))
            tips.add(button, tip)
            self.pair_buttons[text] = button
        card.columnconfigure(1, weight=1)

    # -- derived ---------------------------------------------------------------------------------------------

    def refresh(self, paths: Iterable[str] | None) -> None:
        super().refresh(paths)
        self.online.refresh(paths)
        self.derive()

    def show_problems(self, problems: Mapping[str, Problem]) -> None:
        self._problems = problems
        super().show_problems(self.online.show_problems(problems))

    def opened(self) -> None:
        self.online.show_rollouts()

    def run_changed(self) -> None:
        if self.showing:
            self.online.show_rollouts()

    def focus_field(self, path: str) -> bool:
        tables = {LIST: self.online.rewards, **self.online.speed}
        if path not in tables:
            return super().focus_field(path)
        self.scroll.see(tables[path])
        tables[path].table.tree.focus_set()
        return bool(tables[path].winfo_viewable())

    def derive(self) -> None:
        """Show what follows from the settings."""
        config = self.ui.state.config
        online = config.rlhf_enabled and config.rlhf_mode.online
        self.form.show_card(words.PAIRS_CARD, not online)
        (self.online.kind if online else self.kind).configure(text=describe_training(config))
        shown = config.rlhf_enabled
        beta = self.ui.state.is_visible("rlhf_dpo_beta")
        self.paper.configure(text=_usual(config, beta) if config.trains_pairs else "")
        note = words.MEMORY[config.rlhf_dpo_execution_mode]
        if config.rlhf_dpo_execution_mode is DPOExecutionMode.POLICY_CONCURRENT and (
            not config.rlhf_mode.spec.needs_reference(config)
        ):
            note = words.POLICY_WITHOUT_REFERENCE
        if config.rlhf_dpo_execution_mode is DPOExecutionMode.SEQUENTIAL and (
            config.rlhf_dpo_sequential_strategy is DPOSequentialStrategy.THREE_FORWARD
        ):
            note += words.THREE_FORWARD
        self.memory.configure(text=note if shown else "")

    # -- pairs -----------------------------------------------------------------------------------------------

    def open_pair_tool(self) -> None:
        """Open the pair tool in a window of its own."""
        open_pair_tool_here(self.ui)

    def review_pairs(self) -> None:
        """Ask for a finished folder of pairs and review it."""
        from modules.ui.curation.windows import open_review

        folder = self.ui.chooser.folder(words.ASK_PAIRS)
        if folder is not None:
            resolution = parse_resolutions(self.ui.state.config.resolution)[0]
            open_review(self.ui.root, self.ui.theme, folder, resolution)

    def _concepts(self) -> list[ConceptConfig] | None:
        """The concepts; ``None`` after a message if none of them holds pairs."""
        items = self.concepts.items()
        try:
            if self.concepts.fault is not None:
                raise self.concepts.fault
            concept_pairs(items)
        except UserError as error:
            self.ui.error(error)
            return None
        return items

    def check(self) -> None:
        """Compare the folders of the pairs in a thread, then show the findings."""
        concepts = self._concepts()
        if concepts is not None:
            self._report(words.CHECK, lambda: check_pairs(concepts))

    def buckets(self) -> None:
        """Count pairs by shape in a thread, then show the counts."""
        concepts, config = self._concepts(), self.ui.state.config
        if concepts is not None:
            resolution, batch = config.resolution, config.batch_size
            self._report(words.BUCKETS, lambda: (True, bucket_report(concepts, resolution, batch)))

    def _report(self, title: str, work: Callable[[], tuple[bool, Sequence[str]]]) -> None:
        self.ui.status(words.WORKING.format(title=title))

        def done(found: tuple[bool, Sequence[str]]) -> None:
            good, lines = found
            said = words.REPORT_GOOD if good else words.REPORT_BAD
            self.ui.status(said.format(title=title))
            show_notes(self.ui, title, "" if good else words.CANNOT_TRAIN, lines)

        self.ui.work(work, done)


def describe_training(config: TrainConfig) -> str:
    """One or two sentences on what the settings train, and against what."""
    if not config.rlhf_enabled:
        return words.ORDINARY
    if config.rlhf_mode.online:
        return describe_online(config)
    own = config.effective_dpo_ref_mode() is DPORefMode.EXISTING_ADAPTER
    if config.rlhf_mode.spec.needs_reference(config):
        text = words.OWN_START if own else words.NEW_ADAPTER
    else:
        text = words.OWN_WITHOUT_REFERENCE if own else words.NEW_WITHOUT_REFERENCE
    return text.format(name=Path(config.lora_model_name).name, objective=config.rlhf_dpo_objective.value)


def describe_online(config: TrainConfig) -> str:
    """Describe what a mode that makes its own images does, and what it compares with."""
    name = config.lora_model_name.strip()
    return words.ONLINE.format(
        start=words.FROM_ADAPTER.format(name=Path(name).name) if name else words.FROM_NEW
    )


def _usual(config: TrainConfig, with_beta: bool) -> str:
    """The beta in the units of the paper, and suggested initial DPO values for the chosen family.

    Args:
        with_beta: whether beta has an effect.
    """
    if not config.rlhf_mode.spec.needs_reference(config):
        return words.USUAL_WITHOUT_REFERENCE.format(objective=config.rlhf_dpo_objective.value)
    spec = config.model_type.spec
    values = STARTING_VALUES[spec.prediction]
    if not with_beta:
        return words.USUAL_WITHOUT_BETA.format(label=spec.label, mix=values.supervised_mix, rate=values.rate)
    usual = words.USUAL.format(label=spec.label, beta=values.beta, mix=values.supervised_mix, rate=values.rate)
    return f"{words.PAPER_BETA.format(beta=config.rlhf_dpo_beta * PAPER_FACTOR)}\n{usual}"
