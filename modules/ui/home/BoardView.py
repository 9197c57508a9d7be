"""The Home page with a project: its round in five cards, and the results of earlier rounds."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tkinter import ttk
from typing import Any

from modules.project.overview import STEPS, Overview, Step
from modules.project.taste_head import FEWEST_ANSWERS, may_guess
from modules.ui.form.CardBoard import wrapped_label
from modules.ui.home.CompareDialog import CompareDialog
from modules.ui.home.HomeActions import HomeActions
from modules.ui.home.ProjectWatch import ProjectWatch
from modules.ui.home.StepCard import StepCard
from modules.ui.ImageWindow import ImageWindow, ShownImage
from modules.ui.texts import home as words
from modules.ui.Ui import Ui
from modules.ui.widgets.ImagePrefetcher import prefetcher_of
from modules.ui.widgets.tk_support import IDLE, Timer, show_in_grid
from modules.util.display import counted, duration
from modules.util.image_metadata_util import read_metadata

THUMB_BYTES = 16 * 2**20
ENOUGH_PAIRS = 24
RATE_SECONDS = 3.0
SIDE_STEPS = (("learn", "pick"), ("judge", "compare"))
"""Steps with a button of their own, and the card it is on."""


class BoardView(ttk.Frame):
    """Five cards, one below the other."""

    def __init__(self, parent: tk.Misc, ui: Ui, watch: ProjectWatch) -> None:
        px = ui.theme.px
        super().__init__(parent, style="Back.TFrame", padding=(px(12), 0))
        self.ui, self.watch = ui, watch
        self.columnconfigure(0, weight=1)
        self.prefetcher = prefetcher_of(
            self, ui.pump, lambda _path: self._drawing.start(), THUMB_BYTES, workers=1
        )
        self._since: tuple[object, float, int] = (None, 0.0, 0)
        self._drawing = Timer(self, IDLE, self._draw)
        self.actions = HomeActions(ui, watch)
        head = ttk.Frame(self, style="Back.TFrame")
        head.grid(row=0, column=0, sticky="ew", pady=(0, px(6)))
        head.columnconfigure(1, weight=1)
        self.name = ttk.Label(head, style="Title.TLabel")
        self.name.grid(row=0, column=0, sticky="w")
        self.where = ttk.Label(head, style="Back.TLabel")
        self.where.grid(row=0, column=1, sticky="w", padx=px(12))
        self.leave = ttk.Button(head, text=words.LEAVE, command=watch.leave)
        self.leave.grid(row=0, column=2)
        self.fault = wrapped_label(self, ui.theme, "Error.TLabel")
        self.fault.grid(row=1, column=0, sticky="ew")
        self.cards: dict[str, StepCard] = {}
        for row, key in enumerate(STEPS, 2):
            card = self.cards[key] = StepCard(
                self, ui.theme, key, partial(self.press, key), self.prefetcher, self._look
            )
            card.grid(row=row, column=0, sticky="ew", pady=(0, px(6)))
        self.learn = self.cards["pick"].add_button(words.LEARN, partial(watch.run, "learn", step="pick"))
        self.contestants = self.cards["compare"].add_button(words.CONTESTANTS, self._contestants)
        self.judge = self.cards["compare"].add_button(
            words.JUDGE, partial(watch.run, "judge", step="compare")
        )
        self.earlier = wrapped_label(self, ui.theme, "Back.TLabel")
        self.earlier.grid(row=9, column=0, sticky="ew")

    def _look(self, paths: Sequence[Path], place: int) -> None:
        """Show images of a card enlarged. Only prompts are named, because a comparison must not reveal who
        made an image.
        """
        shown = [ShownImage(path, read_metadata(path).prompt or path.name) for path in paths]
        ImageWindow(self.ui, shown, place)

    # --- showing ------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Update everything from the project."""
        project, seen = self.watch.project, self.watch.seen
        if project is None:
            return
        self.name.configure(text=project.folder.name)
        self.where.configure(text=words.ROUND.format(number=seen.number) if seen else words.LOOKING)
        self.leave.state(["disabled" if self.watch.busy else "!disabled"])
        self.fault.configure(text=self.watch.fault)
        show_in_grid(self.fault, bool(self.watch.fault))
        if seen is None:
            return
        for key, step in seen.steps.items():
            self._show(key, step, seen)
        keys = [key for name in STEPS for key in self.cards[name].wanted(seen.steps[name].images)]
        self.prefetcher.want(keys)
        lines = [words.EARLIER.format(number=n, sentence=text) for n, text in seen.results.items()]
        self.earlier.configure(text="\n".join(lines))

    def _show(self, key: str, step: Step, seen: Overview) -> None:
        card, job = self.cards[key], self.watch.job
        working = job is not None and self.actions.step_of(job.verb) == key
        fault = self.watch.faults.get(key, "")
        if key == "pick":
            self.learn.state(
                ["disabled" if job is not None or seen.answers < FEWEST_ANSWERS else "!disabled"]
            )
            working = working or (job is not None and job.verb == "learn")
        if key == "compare":
            for button in (self.judge, self.contestants):
                button.state(["disabled" if job is not None or step.blocked else "!disabled"])
            working = working or (job is not None and job.verb == "judge")
        if working and job is not None:
            text, share = self._progress(key, step)
            card.show(text, "", fault, share)
            card.show_button(words.STOPPING if job.stopped else words.STOP, True, False)
            return
        reason = words.BLOCKED.get(step.blocked, "")
        busy = job is not None and not (key == "pick" and job.verb == "generate")
        if not reason and busy:
            reason = words.BUSY
        card.show(self._state(key, step, seen), reason, fault)
        begun = self._begun(key, step, seen)
        main = seen.next == key and not busy and not step.blocked
        text = words.RESUME[key] if begun else words.BUTTONS[key]
        if key == "compare" and seen.result and seen.result["decided"]:
            text = words.SHOW_RESULT
        card.show_button(text, not reason, main)

    def _begun(self, key: str, step: Step, seen: Overview) -> bool:
        if key == "pick":
            return seen.answers > 0
        return key in words.RESUME and step.done > 0 and not step.blocked

    def _state(self, key: str, step: Step, seen: Overview) -> str:
        images, pairs = counted(step.total, words.IMAGE), counted(seen.pairs, words.PAIR)
        if key == "generate":
            text = words.IMAGES_OF if step.done else words.TO_BE_MADE
            lines = [text.format(done=step.done, images=images)]
            lines += [words.SHOWN_OF.format(count=seen.shown)] if seen.shown else []
            lines += [words.OWN_IMAGES.format(images=counted(seen.added, words.IMAGE))] if seen.added else []
            return "\n".join(lines)
        if key == "pick":
            text = words.PICKED if seen.pairs >= ENOUGH_PAIRS else words.ENOUGH
            answers = counted(seen.answers, words.ANSWER)
            said = text.format(answers=answers, pairs=pairs) if seen.answers else words.NOTHING_PICKED
            return f"{said}\n{learned(seen.taste)}" if seen.taste else said
        if key == "train":
            return self._trained(step, pairs if seen.pairs else "")
        if key == "compare":
            said = str(seen.result["sentence"]) if seen.result else words.COMPARE_ABOUT
            return "\n".join([said, *(words.AUTOMATIC.format(sentence=one) for one in seen.judged)])
        return words.NEXT_ABOUT

    def _trained(self, step: Step, pairs: str) -> str:
        if step.blocked == "trained":
            text = words.TRAINED.format(steps=counted(step.done, words.STEP))
            took = "" if step.seconds is None else f", {words.TOOK.format(time=duration(step.seconds))}"
            return text + took
        if step.done:
            return words.STOPPED_AT.format(done=step.done, total=step.total)
        return words.TO_TRAIN_ON.format(pairs=pairs) if pairs else ""

    def _progress(self, key: str, step: Step) -> tuple[str, float]:
        job = self.watch.job
        assert job is not None
        if key == "pick" or (key == "train" and job.done < job.total and not step.total):
            return self._learning(job.done, job.total)
        done, total, text = step.done, step.total, words.IMAGES_OF
        if key == "compare":
            text = words.JUDGING if job.verb == "judge" else words.PREPARING
            done, total = job.done, job.total
        if key == "train":
            if not step.total or not step.left:
                return words.LOADING, 0.0
            said, left = words.STEP_OF.format(done=done, total=total), step.seconds
        else:
            said = text.format(done=done, images=counted(total, words.IMAGE)) if total else words.LOADING
            left = self._rate(job, done, total) if total else None
        if left is not None:
            said += f", {words.LEFT.format(time=duration(left))}"
        return said, done / total if total else 0.0

    def _learning(self, done: int, total: int) -> tuple[str, float]:
        """Progress in looking at images to learn a taste; also used before training on it."""
        if not total:
            return words.LEARNING, 0.0
        return words.LEARNING_OF.format(done=done, images=counted(total, words.IMAGE)), done / total

    def _rate(self, job: object, done: int, total: int) -> float | None:
        """Seconds left at the speed since the first image of this job."""
        now = time.monotonic()
        if self._since[0] is not job or self._since[2] > done:
            self._since = (job, now, done)
        _, begun, first = self._since
        if done <= first or now - begun < RATE_SECONDS:
            return None
        return (total - done) * (now - begun) / (done - first)

    def _draw(self) -> None:
        for card in self.cards.values():
            card.draw()

    # --- input --------------------------------------------------------------------------------------------------

    def press(self, key: str) -> None:
        """Handle the button of a card: stop the step if it is running, otherwise take it."""
        job = self.watch.job
        if job is not None and (self.actions.step_of(job.verb) == key or (job.verb, key) in SIDE_STEPS):
            self.watch.stop()
        else:
            self.actions.take(key)

    def _contestants(self) -> None:
        if self.watch.project is not None:
            CompareDialog(self.ui, self.watch.project, self.actions.compare)


def learned(taste: dict[str, Any]) -> str:
    """Say how well a taste is known, in one sentence."""
    unguarded = "" if taste.get("knows_fit", True) else f"\n{words.UNGUARDED}"
    if taste["interval"] is None:
        comparisons = counted(taste["comparisons"], words.COMPARISON)
        return words.LEARNED_UNMEASURED.format(comparisons=comparisons) + unguarded
    low, high = taste["interval"]
    comparisons = counted(taste["measured_on"], words.COMPARISON)
    said = words.LEARNED.format(share=taste["accuracy"], comparisons=comparisons, low=low, high=high)
    guesses = f"\n{words.GUESSES}" if may_guess(taste["interval"]) else ""
    return said + guesses + unguarded
