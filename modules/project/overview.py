"""The state of a project, step by step, even while it is being worked on. Changes and locks nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.curation.store import STORE_NAME
from modules.project.judging import judgement_of_round
from modules.project.making import USUAL_PER_PROMPT
from modules.project.Project import ARENA, Project
from modules.project.proving import verdict
from modules.project.Round import Round
from modules.project.rounds import step_after
from modules.project.taste_head import measured
from modules.runner.status import RunStatus, read_status
from modules.util.files.EventLog import peek
from modules.util.owned_files import Owned

STEPS = ("generate", "pick", "train", "compare", "new-round")
FEWEST_PAIRS = 2
SHOWN = 8
"""Maximum number of images listed per step."""


@dataclass(frozen=True)
class Step:
    """One step of the current round.

    Args:
        key: one of ``STEPS``.
        done, total: what there is of it; ``total`` is 0 if unknown.
        blocked: why it cannot be taken, as a key: ``made``, ``no_images``, ``picked``, ``no_pairs``, ``trained``,
            ``not_trained``, or empty.
        images: some of its images, the newest last.
        seconds: how long it took, or with ``left`` how long it will; ``None`` if unknown.
    """

    key: str
    done: int = 0
    total: int = 0
    blocked: str = ""
    images: tuple[Path, ...] = ()
    seconds: float | None = None
    left: bool = False


@dataclass(frozen=True)
class Overview:
    """State of a project at one moment.

    Args:
        steps: steps by key.
        next: key of the next step.
        live: whether a trainer is running for the round.
        answers, pairs: numbers picked in the round.
        taste: how well the taste was learned, see ``measured``.
        result: result of the votes on the round, as JSON; ``None`` without votes.
        judged: verdicts of automatic judges on the round, as sentences: its losses, else its rating.
        results: sentences about earlier rounds, by number.
        shown: images shown per prompt, if more are made; else 0.
        added: images added by the person.
    """

    folder: Path
    number: int
    steps: dict[str, Step]
    next: str
    live: bool
    answers: int
    pairs: int
    taste: dict[str, Any]
    result: dict[str, Any] | None
    judged: list[str]
    results: dict[int, str]
    shown: int = 0
    added: int = 0


def overview(project: Project) -> Overview:
    """Read the state of a project.

    Raises:
        UserError: a project file is unreadable.
    """
    *before, one = project.rounds()
    run = read_status(one.run)
    result = verdict(project, one)
    # the folder is listed once, because it may hold thousands of images and grow meanwhile
    planned = one.images()
    made = [path for image in planned if (path := one.made(image)) is not None]
    to_choose = one.to_choose() if len(made) == len(planned) else {}
    added = [one.candidates / image.file for image in one.added()]
    shown = sum(path.parent == one.candidates for path in made) + len(added)
    # both are in order of creation
    newest = sorted([*added[-SHOWN:], *made[-SHOWN:]], key=_changed)[-SHOWN:]
    steps = (
        _images(project, one, len(planned), len(made), bool(to_choose), newest),
        _picks(one, shown),
        _training(one, run),
        _comparing(project, one, result),
        Step("new-round", one.number, blocked="" if one.trained else "not_trained"),
    )
    complete = bool(planned) and len(made) == len(planned) and not to_choose
    following = step_after(one, bool(result), complete)
    found_by_judges = judgement_of_round(project, one) or {"losses": [], "sentences": []}
    judged = found_by_judges["losses"] or found_by_judges["sentences"][:1]
    said = {other.number: found["sentence"] for other in before if (found := verdict(project, other))}
    return Overview(
        project.folder, one.number, {step.key: step for step in steps}, following, run.pid is not None,
        one.answers, one.pair_count, measured(one), result, judged, said, one.shown, len(added),
    )  # fmt: skip


def unfinished(project: Project) -> frozenset[str]:
    """Candidates of prompts without all their images yet, which cannot be compared fairly."""
    one = project.round
    waiting = {image.task.group for image in one.missing()} | one.to_choose().keys()
    return frozenset(image.file for image in one.images() if image.task.group in waiting)


def _images(
    project: Project, one: Round, planned: int, made: int, to_choose: bool, newest: list[Path]
) -> Step:
    total = planned or len(project.tasks()) * USUAL_PER_PROMPT
    complete = "made" if planned and made == planned and not to_choose else ""
    blocked = "trained" if one.trained else complete
    return Step("generate", made, total, blocked, tuple(newest))


def _picks(one: Round, made: int) -> Step:
    enough = one.candidates.is_dir() and made >= 2
    blocked = "picked" if one.trained else "" if enough else "no_images"
    return Step("pick", one.groups_done, one.prompt_count, blocked, _chosen(one))


def _chosen(one: Round) -> tuple[Path, ...]:
    """The chosen images of the newest pairs. Names that lead out of their folder are refused."""
    query = f"SELECT json_extract(entry, '$.chosen_file') FROM pairs ORDER BY rowid DESC LIMIT {SHOWN}"
    names = [row[0] for row in peek(one.pairs / STORE_NAME, query) if isinstance(row[0], str)]
    found = [Owned(one.pairs).plain_file(name) for name in names]
    return tuple(reversed([path for path in found if path.is_file()]))


def _training(one: Round, run: RunStatus) -> Step:
    progress = (run.step or {}).get("progress") or {}
    done, total = int(progress.get("global_step", 0)), int((run.step or {}).get("total_steps") or 0)
    begun = bool(one.run.launch_record())
    blocked = "trained" if one.trained else "" if begun or one.pair_count >= FEWEST_PAIRS else "no_pairs"
    eta = (run.step or {}).get("eta")
    if run.pid is not None:
        return Step("train", done, total, blocked, (), eta if isinstance(eta, (int, float)) else None, True)
    took = None if run.started is None or run.updated is None else run.updated - run.started
    return Step("train", done, total, blocked, (), took)


def _comparing(project: Project, one: Round, result: dict[str, Any] | None) -> Step:
    votes = int(result["votes"]) if result else 0
    blocked = "" if one.trained else "not_trained"
    return Step(
        "compare", votes, 0, blocked, _compared(project.folder / ARENA / "images") if one.trained else ()
    )


def _compared(folder: Path) -> tuple[Path, ...]:
    """The newest images made for comparison."""
    found = [path for path in folder.glob("*/*.png") if not path.name.startswith(".")]
    return tuple(sorted(found, key=_changed)[-SHOWN:])


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
