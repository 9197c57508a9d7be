"""A person's taste, learned from the answers: a head on features of the model, trained in a separate process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.arena.sequential import interval
from modules.project.presets import again_config
from modules.project.Project import Project
from modules.project.Round import Round
from modules.runner.LineProcess import LineProcess, result_of
from modules.util.errors import UserError
from modules.util.program_files import ROOT

FEWEST_ANSWERS = 10
GUESSING = 0.5
Progress = Callable[[str], None]


@dataclass(frozen=True)
class TasteHead:
    """A learned taste.

    Args:
        weights: the file read by ``preference_head``.
        comparisons: number of comparisons it was learned from.
        measured_on: number of comparisons on held-out prompts, used for measuring.
        accuracy: share of those that it gets right; ``None`` if there are none.
        no_fit: why it cannot recognise images that match their prompt badly, and so cannot guard against
            them; empty if it can.
        interval: 95 % interval of the accuracy for other prompts; ``None`` if it was not measured.
    """

    weights: Path
    comparisons: int
    measured_on: int
    accuracy: float | None
    no_fit: str
    interval: tuple[float, float] | None = None

    @property
    def guesses(self) -> tuple[float, float] | None:
        """The interval of the accuracy, if the head may be no better than guessing; else ``None``."""
        found = _interval(self.to_dict())
        return found if found is not None and may_guess(found) else None

    def to_dict(self) -> dict[str, Any]:
        """A summary for people and records, without the file."""
        return {
            "comparisons": self.comparisons,
            "measured_on": self.measured_on,
            "accuracy": self.accuracy,
            "knows_fit": not self.no_fit,
            **({} if self.interval is None else {"interval": list(self.interval)}),
        }


def learn(project: Project, progress: Progress) -> dict[str, Any]:
    """Learn from all answers so far, and measure how well a head predicts the taste. The round stores the
    result.

    A run that was started with an earlier taste keeps it.

    Returns:
        ``comparisons``, ``measured_on``, ``accuracy`` and its ``interval``; the latter two are ``None`` if
            nothing was left to measure on.

    Raises:
        UserError: as for ``learn_taste``, or another process is working on the project.
    """
    with project.busy():
        one = project.round
        learn_taste(project, one, progress, newer=is_under_way(one))
    return measured(one)


def is_under_way(one: Round) -> bool:
    """Return whether a run on a learned taste was started and could be resumed, or is running now."""
    begun = one.config_path.is_file() and (one.has_backup or one.run.trainer() is not None)
    return begun and not one.trained and not again_config(one.config_path, {}, ()).trains_pairs


def measured(one: Round) -> dict[str, Any]:
    """Figures on how well the taste was learned in a round, with the ``interval`` of the accuracy; empty if it was
    not learned.
    """
    told = one.taste
    if not told:
        return {}
    found = _interval(told)
    return {**told, "interval": None if found is None else list(found)}


def may_guess(found: Sequence[float]) -> bool:
    """Return whether a head with this accuracy interval may be no better than guessing."""
    return found[0] <= GUESSING


def _interval(told: Mapping[str, Any]) -> tuple[float, float] | None:
    """The interval in a record; if an older version wrote it without one, that of independent comparisons."""
    if told.get("accuracy") is None:
        return None
    if (known := told.get("interval")) is not None:
        return float(known[0]), float(known[1])
    count = int(told.get("measured_on") or 0)
    right = round(told["accuracy"] * count)
    return interval(right, count - right)


def judged_rounds(project: Project, one: Round) -> list[Round]:
    """The rounds up to this one whose answers a taste is learned from. Raises ``UserError`` if they are too few."""
    rounds = [other for other in project.rounds() if other.number <= one.number and other.answers]
    answers = sum(other.answers for other in rounds)
    if answers < FEWEST_ANSWERS:
        raise UserError(
            f"{answers} answers are too few to learn a taste from",
            hint=f"pick until there are {FEWEST_ANSWERS}; 25 or more are better",
        )
    return rounds


def learn_taste(project: Project, one: Round, progress: Progress, newer: bool = False) -> TasteHead:
    """Learn from the answers of all rounds up to this one, and write the taste to the round's folder.

    Args:
        newer: whether to write it next to the taste that the round's run uses.

    Raises:
        UserError: there are too few answers, or features cannot be computed.
    """
    rounds = judged_rounds(project, one)
    answers = sum(other.answers for other in rounds)
    weights = one.newer_taste_path if newer else one.taste_path
    command = [sys.executable, str(ROOT / "scripts" / "train_reward.py")]
    command += ["--source", project.file.model.base]
    command += ["--model-type", project.file.model.type]
    command += ["--out", str(weights), "--seed", str(project.file.seed)]
    command += ["--device", project.file.device]
    for other in rounds:
        command += ["--pairs", str(other.pairs), "--images", str(other.candidates)]
    progress(f"{one.name}: learning your taste from {answers} answers")
    command += ["--fit-images", "-"]
    first = project.rounds()[0]
    untrained = [str(first.candidates / image.file) for image in first.images()] + [str(first.pairs)]

    def heard(line: str) -> None:
        progress(f"{one.name}: learning your taste, {line}")

    process = LineProcess(command, json.dumps(untrained).encode(), "learning the taste", heard)
    said = result_of(process)
    accuracy, between = said.get("held_out_accuracy"), said.get("held_out_interval")
    head = TasteHead(
        weights,
        int(said.get("train_pairs", 0)),
        int(said.get("held_out_pairs", 0)),
        None if accuracy is None else float(accuracy),
        str(said.get("no_fit", "")),
        None if between is None else (float(between[0]), float(between[1])),
    )
    one.write_taste(head.to_dict(), newer)
    return head


def taste_file(project: Project) -> Path | None:
    """The newest learned taste."""
    places = (path for one in reversed(project.rounds()) for path in (one.newer_taste_path, one.taste_path))
    return next((path for path in places if path.is_file()), None)
