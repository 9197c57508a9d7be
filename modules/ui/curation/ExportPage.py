"""The last page of the pair tool: the pairs made, finalising, and how consistent the answers are."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tkinter import ttk
from typing import Any

from modules.curation.ImageGroup import ImageGroup
from modules.curation.intake.scan import edits_without_source
from modules.curation.marking.Marks import LIKES_NAME
from modules.curation.statistics import AnswerStatistics
from modules.ui.curation.PairController import PairController
from modules.ui.curation.PairToolMemory import PairToolMemory
from modules.ui.curation.PassedPrompts import PassedPrompts
from modules.ui.texts import export as words
from modules.ui.widgets.Chooser import Chooser
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.ScrollFrame import ScrollFrame
from modules.ui.widgets.theme import Theme, style_text
from modules.ui.widgets.tk_support import IDLE, later, set_text
from modules.util.display import counted
from modules.util.dpo_curation_util import CONCEPTS_NAME, unconditional_warning

MAX_LISTED = 2000


@dataclass(frozen=True)
class ExportActions:
    """Callbacks of the page.

    Args:
        back: returns to the choosing page.
        review: opens the review of the finalised pairs.
        restart: returns to the start page.
        train: sets up training on the pairs; ``None`` where there is no window for that.
    """

    back: Callable[[], None]
    review: Callable[[], None]
    restart: Callable[[], None]
    train: Callable[[], None] | None = None


class ExportPage(ttk.Frame):
    """Splits the pairs into training and validation."""

    def __init__(
        self,
        parent: tk.Misc,
        theme: Theme,
        controller: PairController,
        memory: PairToolMemory,
        chooser: Chooser,
        actions: ExportActions,
    ) -> None:
        super().__init__(parent, style="Back.TFrame")
        self.theme, self.controller, self.memory = theme, controller, memory
        self._chooser, self._back = chooser, actions.back
        self.columnconfigure(0, weight=1)
        self.rowconfigure(0, weight=1)
        scroll = ScrollFrame(self, theme)
        scroll.grid(row=0, column=0, sticky="nsew")
        scroll.inside.columnconfigure(0, weight=1)
        self._inside = scroll.inside
        self.percentage = tk.StringVar(self, f"{memory.validation:g}")
        self._finalise_card()
        self._answers_card()
        self.passed: PassedPrompts | None = None
        self._files_card()
        self._bottom(actions)
        self._refresh()
        controller.passed(self._passed_card)
        later(self.go, IDLE, self.go.focus_set)

    def _card(self, row: int, title: str) -> ttk.Frame:
        px = self.theme.px
        card = ttk.Frame(self._inside, padding=px(16))
        card.grid(row=row, column=0, sticky="ew", padx=px(16), pady=(px(12), 0))
        card.columnconfigure(0, weight=1)
        ttk.Label(card, text=title, style="Bold.TLabel").grid(row=0, column=0, sticky="w", pady=(0, px(8)))
        return card

    def _finalise_card(self) -> None:
        px = self.theme.px
        card = self._card(0, words.FINALISE)
        self.summary = ttk.Label(card, text="\u2026", wraplength=px(700), justify="left")
        self.summary.grid(row=1, column=0, sticky="w")
        line = ttk.Frame(card)
        line.grid(row=2, column=0, sticky="w", pady=px(8))
        self.entry = ttk.Entry(line, textvariable=self.percentage, width=6, font=self.theme.fonts["text"])
        self.entry.pack(side="left")
        self.entry.bind("<Return>", lambda _event: self.finalise())
        ttk.Label(line, text=words.VALIDATION_UNIT, style="Muted.TLabel").pack(side="left", padx=px(8))
        self.error = ttk.Label(card, style="Error.TLabel", wraplength=px(700))
        self.error.grid(row=3, column=0, sticky="w")
        self.result = ttk.Label(card, style="Good.TLabel", wraplength=px(700), justify="left")
        self.result.grid(row=4, column=0, sticky="w")
        self.warning = ttk.Label(card, style="Warning.TLabel", wraplength=px(700), justify="left")
        self.warning.grid(row=5, column=0, sticky="w")

    def _answers_card(self) -> None:
        card = self._card(1, words.ANSWERS)
        self.answers = ttk.Label(card, text="\u2026", wraplength=self.theme.px(700), justify="left")
        self.answers.grid(row=1, column=0, sticky="w")

    def _passed_card(self, groups: Sequence[ImageGroup]) -> None:
        if not groups or not self.winfo_exists():
            return
        card = self._card(2, words.PASSED.format(prompts=counted(len(groups), words.PROMPT)))
        self.passed = PassedPrompts(card, self.theme, groups, self._open_prompt)
        self.passed.grid(row=1, column=0, sticky="ew")

    def _open_prompt(self, key: str) -> None:
        self.controller.open(key)
        self._back()

    def _files_card(self) -> None:
        faults = self.controller.faults()
        if not faults:
            return
        card = self._card(3, words.LEFT_OUT.format(files=counted(len(faults), words.FILE)))
        root = self.controller.options.source
        lines = [
            words.EDIT_WITHOUT_SOURCE.format(prompt=prompt, images=counted(count, words.IMAGE))
            for prompt, count in edits_without_source(faults).items()
        ]
        lines += [f"{relative(fault.path, root)}: {fault.reason}" for fault in faults[:MAX_LISTED]]
        box = tk.Text(card, height=min(8, len(lines)), wrap="none")
        style_text(self.theme, box)
        set_text(box, "\n".join(lines))
        box.grid(row=1, column=0, sticky="ew")

    def _bottom(self, actions: ExportActions) -> None:
        px = self.theme.px
        bottom = ttk.Frame(self, padding=(px(16), px(8)))
        bottom.grid(row=1, column=0, sticky="ew")
        bottom.columnconfigure(0, weight=1)
        row = FlowFrame(bottom, self.theme.px(6))
        row.grid(row=0, column=0, sticky="ew")
        button = row.add_button
        self.go = button(words.FINALISE, self.finalise, "Accent.TButton")
        self.train_button = button(words.TRAIN, actions.train) if actions.train is not None else None
        button(words.BACK, self._back)
        self.review_button = button(words.REVIEW, actions.review)
        button(words.COPY_PATH, self._copy)
        button(words.EXPORT_DATASETS, lambda: self._export("datasets"))
        button(words.EXPORT_JSONL, lambda: self._export("jsonl"))
        button(words.OTHER_FOLDERS, actions.restart)

    def on_key(self, key: str, control: bool = False, shift: bool = False) -> bool:
        """Return to the choosing page on Escape."""
        if key == "Escape":
            self._back()
            return True
        return False

    # --- what there is ------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        self.controller.statistics(self._show)

    def _show(self, found: tuple[AnswerStatistics, list[dict[str, Any]]]) -> None:
        if not self.winfo_exists():
            return
        statistics, pairs = found
        places = [str(pair["chosen_file"]).split("/") for pair in pairs]
        split = {name: sum(len(p) > 2 and p[1] == name for p in places) for name in ("train", "val")}
        waiting = len(pairs) - sum(split.values())
        prompts = counted(len({p["prompt"] for p in pairs}), words.PROMPT)
        made = counted(len(pairs), words.PAIR)
        text = words.SUMMARY.format(
            pairs=made, prompts=prompts, folder=self._folder, **split, waiting=waiting
        )
        self.summary.configure(text=text)
        self.answers.configure(text=statistics_text(statistics) + self._marks_text())
        self.go.state(["!disabled" if pairs else "disabled"])
        self.review_button.state(["!disabled" if pairs else "disabled"])
        if self.train_button is not None:
            ready = pairs and not waiting and (self._folder / CONCEPTS_NAME).is_file()
            self.train_button.state(["!disabled" if ready else "disabled"])
            text = words.TRAIN_ON.format(pairs=made) if ready else words.TRAIN
            self.train_button.configure(text=text, style="Accent.TButton" if ready else "TButton")
            self.go.configure(style="TButton" if ready else "Accent.TButton")

    def _marks_text(self) -> str:
        liked, disliked = self.controller.marked()
        if not liked and not disliked:
            return ""
        return words.MARKED.format(
            liked=counted(liked, words.IMAGE), disliked=disliked, file=self._folder / LIKES_NAME
        )

    @property
    def _folder(self) -> Path:
        return self.controller.options.output

    # --- doing --------------------------------------------------------------------------------------------------

    def finalise(self) -> None:
        """Split the pairs into training and validation and write concepts.json."""
        try:
            percentage = float(self.percentage.get())
        except ValueError:
            percentage = -1.0
        good = 0 <= percentage <= 100
        text = "" if good else words.NOT_A_PERCENTAGE.format(value=self.percentage.get())
        self.error.configure(text=text)
        self.entry.state(["!invalid" if good else "invalid"])
        if not good:
            self.entry.focus_set()
            return
        self.memory.validation = percentage
        self.go.state(["disabled"])
        self.controller.finalise(percentage, self._finalised, self._failed)

    def _finalised(self, counts: tuple[int, int, int]) -> None:
        if not self.winfo_exists():
            return
        train, val, unconditional = counts
        warning = unconditional_warning(unconditional)
        self.warning.configure(text=f"\u26a0  {warning}." if warning else "")
        self.result.configure(
            text=words.READY.format(
                pairs=counted(train, words.PAIR), val=val, path=self._folder / CONCEPTS_NAME
            )
        )
        self._refresh()

    def _failed(self, error: Exception) -> None:
        if self.winfo_exists():
            self.go.state(["!disabled"])
            self.error.configure(text=str(error))

    def _copy(self) -> None:
        self.clipboard_clear()
        self.clipboard_append(str((self._folder / CONCEPTS_NAME).absolute()))

    def _export(self, kind: str) -> None:
        folder = self._chooser.folder(words.ASK_EMPTY_FOLDER, parent=self)
        if folder is not None:
            self.export(kind, folder)

    def export(self, kind: str, target: Path) -> None:
        """Copy the finalised pairs to ``target`` as a ``datasets`` folder or as ``jsonl``."""
        self.error.configure(text="")

        def done(count: int) -> None:
            if self.winfo_exists():
                self.result.configure(
                    text=words.COPIED.format(pairs=counted(count, words.PAIR), folder=target)
                )

        self.controller.export_other(kind, target, done, self._failed)


def relative(path: Path, root: Path) -> str:
    """``path`` relative to ``root``, or unchanged if it is elsewhere."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def statistics_text(found: AnswerStatistics) -> str:
    """A few sentences about a person's consistency."""
    if not found.questions:
        return words.NO_ANSWERS
    said = words.ANSWERED.format(
        questions=counted(found.questions, words.QUESTION),
        answered=found.answered,
        ties=counted(found.ties, words.TIE),
        both_bad=found.both_bad,
        skips=found.skips,
    )
    lines = [said]
    if found.first_place_share is not None:
        lines.append(words.LEFT_WON.format(share=found.first_place_share))
    if found.repeated:
        repeated = counted(found.repeated, words.REPEATED)
        lines.append(words.AGREEING.format(agreeing=found.agreeing, questions=repeated))
    if found.triples:
        triples = counted(found.triples, words.TRIPLE)
        lines.append(words.CIRCLES.format(circles=found.circles, triples=triples))
    return "\n".join(lines)
