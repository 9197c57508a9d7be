"""A gauge of how well a taste is known, measured in a separate process while the person keeps marking."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict

from modules.curation.marking.advice import Known, can_measure, what_next
from modules.curation.marking.Marks import Preferred
from modules.runner.LineProcess import LineProcess, result_of
from modules.ui.curation.PairController import PairController
from modules.ui.texts import choosing as words
from modules.util.errors import UserError
from modules.util.program_files import ROOT

AGAIN_AFTER = 5
"""Measure again after this many more marks."""


class TasteGauge:
    """Accuracy of a taste head on held-out prompts, and what to do next.

    Args:
        changed: called on the Tk thread when there is a new figure.
    """

    def __init__(self, controller: PairController, changed: Callable[[], None]) -> None:
        self._controller, self._changed = controller, changed
        self._counts = (0, 0, 0)
        self._measured_at = 0
        self._busy = self._closed = False
        self._process: LineProcess | None = None
        self.known: Known | None = None
        self.problem = ""

    @property
    def share(self) -> float:
        """Value of a progress bar: 0 while it is no better than guessing, 1 if it is always right."""
        return 0.0 if self.known is None else max(0.0, 2 * self.known.share - 1)

    @property
    def text(self) -> str:
        """A text that says how well the taste is known, and what to do next."""
        liked, _, seen = self._counts
        if self.problem:
            known = words.TASTE_FAILED.format(reason=self.problem)
        elif self.known is None:
            known = words.TASTE_UNKNOWN
        else:
            known = words.TASTE_KNOWN.format(**asdict(self.known))
        step, more = what_next(liked, seen, self.known)
        return words.WHAT_NEXT[step].format(known=known, more=more)

    def look(self, liked: int, disliked: int, seen: int) -> None:
        """Measure again if there are enough new marks and no measurement is running."""
        self._counts = (liked, disliked, seen)
        marks = liked + disliked
        if not self._busy and can_measure(liked, seen) and abs(marks - self._measured_at) >= AGAIN_AFTER:
            self._busy, self._measured_at = True, marks
            self._controller.comparisons(self._begin)

    def _begin(self, found: Sequence[Preferred]) -> None:
        if not self._closed:
            threading.Thread(target=self._measure, args=(found,), daemon=True, name="taste-gauge").start()

    def _measure(self, found: Sequence[Preferred]) -> None:
        known: Known | None = None
        problem = ""
        try:
            known = self._ask(found)
        except UserError as error:
            problem = error.message.splitlines()[0]
        if self._closed:
            return
        self._controller.post(lambda: self._have(known, problem))

    def _ask(self, found: Sequence[Preferred]) -> Known | None:
        command = [sys.executable, str(ROOT / "scripts" / "train_reward.py"), "--comparisons", "-"]
        command += ["--features", "picture", "--measure-only"]
        process = LineProcess(command, json.dumps([asdict(one) for one in found]).encode(), words.MEASURING)
        self._process = process
        said = result_of(process)
        accuracy, between = said.get("held_out_accuracy"), said.get("held_out_interval")
        return None if accuracy is None or between is None else Known(accuracy, *between)

    def _have(self, known: Known | None, problem: str) -> None:
        self._busy = False
        if not self._closed:
            self.known, self.problem = known, problem
            self._changed()

    def close(self) -> None:
        """Stop measuring."""
        self._closed = True
        if self._process is not None:
            self._process.stop()
