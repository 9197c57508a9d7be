"""A person's taste, learned from the answers: a head on features of the model, trained in a separate process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.arena.sequential import interval
from modules.project.Project import Project
from modules.project.Round import Round
from modules.runner.LineProcess import LineProcess, result_of
from modules.util.errors import UserError
from modules.util.program_files import ROOT

FEWEST_ANSWERS = 10
Progress = Callable[[str], None]


@dataclass(frozen=True)
class TasteHead:
    """A learned taste.

    Args:
        weights: the file, as ``preference_head`` reads it.
        comparisons: it was learned from.
        measured_on: comparisons about other prompts that were kept for measuring.
        accuracy: share of those that it gets right; ``None`` if there are none.
        knows_fit: it can tell images that fit their prompt badly, and so guard against them.
    """

    weights: Path
    comparisons: int
    measured_on: int
    accuracy: float | None
    knows_fit: bool = False

    def to_dict(self) -> dict[str, Any]:
        """For people and records, without the file."""
        return {
            "comparisons": self.comparisons,
            "measured_on": self.measured_on,
            "accuracy": self.accuracy,
            "knows_fit": self.knows_fit,
        }


def learn(project: Project, progress: Progress) -> dict[str, Any]:
    """Learn from all answers so far to measure how well a head predicts the taste; the round stores the result.

    Returns:
        ``comparisons``, ``measured_on``, ``accuracy`` and its ``interval``; both ``None`` where nothing was left to
        measure on.

    Raises:
        UserError: as ``learn_taste``; or somebody else is working on the project.
    """
    with project.busy():
        head = learn_taste(project, project.round, progress)
        project.round.write_taste(head.to_dict())
    return measured(project.round)


def measured(one: Round) -> dict[str, Any]:
    """How well the taste was learned in a round, with the interval of the arena; empty where it was not."""
    told = one.taste
    if not told:
        return {}
    accuracy, count = told.get("accuracy"), int(told.get("measured_on") or 0)
    if accuracy is None:
        return {**told, "interval": None}
    right = round(accuracy * count)
    return {**told, "interval": list(interval(right, count - right))}


def learn_taste(project: Project, one: Round, progress: Progress) -> TasteHead:
    """Learn from the answers of all rounds up to this one; written to the round's folder.

    Raises:
        UserError: there are too few answers, or features cannot be computed.
    """
    rounds = [other for other in project.rounds() if other.number <= one.number and other.answers]
    answers = sum(other.answers for other in rounds)
    if answers < FEWEST_ANSWERS:
        raise UserError(
            f"{answers} answers are too few to learn a taste from",
            hint=f"pick until there are {FEWEST_ANSWERS}; 25 or more are better",
        )
    weights = one.folder / "taste.safetensors"
    command = [sys.executable, str(ROOT / "scripts" / "train_reward.py")]
    command += ["--source", project.file.model.base]
    command += ["--model-type", project.file.model.type]
    command += ["--out", str(weights), "--seed", str(project.file.seed)]
    command += ["--device", project.file.device]
    for other in rounds:
        command += ["--pairs", str(other.pairs), "--images", str(other.candidates)]
    progress(f"{one.name}: learning your taste from {answers} answers")
    process = LineProcess(command, b"", "learning the taste")
    said = result_of(process)
    accuracy = said.get("held_out_accuracy")
    return TasteHead(
        weights,
        int(said.get("train_pairs", 0)),
        int(said.get("held_out_pairs", 0)),
        None if accuracy is None else float(accuracy),
        said.get("usual_fit") is not None,
    )


def taste_file(project: Project) -> Path | None:
    """The newest taste that was learned."""
    return next((one.taste_path for one in reversed(project.rounds()) if one.taste_path.is_file()), None)
