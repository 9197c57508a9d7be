"""The state of a project, its next step, and the prompts of the next round."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from modules.arena.VoteStore import read_votes
from modules.curation.store import STORE_NAME
from modules.project.candidates.SourceShelf import name_of_digests
from modules.project.judging import judgement_of_round
from modules.project.making import MOST_PROMPTS, Surplus, write_plan
from modules.project.Project import ARENA, Project
from modules.project.prompts import Task
from modules.project.proving import keys_judged_last, verdict
from modules.project.Round import Round
from modules.project.taste_head import taste_file
from modules.project.training import steps_of
from modules.util.errors import UserError
from modules.util.files.EventLog import peek
from modules.util.image_metadata_util import normalise_prompt
from modules.util.rng import python_random

ENOUGH_PAIRS = 48
RANDOM_SHARE = 0.2
SURPLUS = 3


def status(project: Project) -> dict[str, Any]:
    """The rounds and the next step. Nothing is locked or changed."""
    return {"rounds": [_row(project, one) for one in project.rounds()], "next": next_step(project)}


def _row(project: Project, one: Round) -> dict[str, Any]:
    planned, missing = len(one.images()), len(one.missing())
    return {
        "candidates": planned - missing,
        "planned": planned,
        "added": len(one.added()),
        "answers": one.answers,
        "pairs": one.pair_count,
        "steps": steps_of(one),
        "adapter": project.stored_name(one.adapter_path) if one.trained else None,
        "arena": verdict(project, one),
        "automatic": judgement_of_round(project, one),
    }


def next_step(project: Project) -> str:
    """``generate``, ``pick``, ``train``, ``compare`` or ``new-round``."""
    one = project.round
    return step_after(one, bool(verdict(project, one)), one.complete)


def step_after(one: Round, voted: bool, made: bool) -> str:
    """The next step of a round.

    Args:
        voted: whether it was voted on.
        made: whether all its images are made, and those to show are chosen.
    """
    if one.trained:
        return "new-round" if voted else "compare"
    if one.run.launch_record():
        return "train"
    if not made:
        return "generate"
    picked = one.pair_count >= ENOUGH_PAIRS or one.groups_done >= one.prompt_count or one.all_shown
    return "train" if picked and one.pair_count >= 2 else "pick"


def new_round(project: Project, per_prompt: int | None = None, surplus: int = SURPLUS) -> dict[str, Any]:
    """Begin the next round by planning its images. None are made yet.

    Args:
        surplus: with a learned taste, this many times more images are made than shown. Random prompts have no
            surplus, so that their images measure honestly how well the taste is known.

    Raises:
        UserError: the current round is not trained.
    """
    with project.busy():
        one = project.round
        if not one.trained:
            raise UserError(f"{one.name} is not trained yet", hint=f"next step: {next_step(project)}")
        following = Round(project.owned, one.number + 1)
        project.keep_sources()
        prompts = tasks_by_need(project, one)
        count = (
            per_prompt
            or one.shown
            or len(one.images()) // max(1, len({image.task for image in one.images()}))
        )
        chance = prompts[: by_chance(len(prompts))]
        more = Surplus(surplus, frozenset(task.group for task in chance))
        learned = taste_file(project) is not None
        write_plan(project, following, prompts, count or None, project.newest, more if learned else None)
        planned = len(following.images())
        made = {"round": following.number, "prompts": len(prompts), "planned": planned}
        return {**made, "shown": following.shown} if following.shown else made


def by_chance(count: int) -> int:
    """Return how many of ``count`` prompts are chosen at random; they are the first ones of a round."""
    return round(RANDOM_SHARE * count)


def tasks_by_need(project: Project, one: Round) -> list[Task]:
    """Choose as many tasks as in the previous round: a fifth at random, the others by need.

    New prompts come first, then those whose picks were least certain. Held-out prompts are never used for
    picking. Instead, prompts that share words with held-out prompts on which the adapter lost in the arena
    move up.
    """
    every = project.tasks()
    count = min(len(every), len({image.task for image in one.images()}) or MOST_PROMPTS)
    rng = python_random("taste-next", project.file.seed, one.number)
    rng.shuffle(every)
    chance = every[: by_chance(count)]
    certainty, lost = certainty_of_tasks(project), lost_prompts(project, one)

    def need(task: Task) -> float:
        return closeness(task.prompt, lost) - certainty.get(task.key, -1.0)

    rest = sorted(every[len(chance) :], key=need, reverse=True)
    return [*chance, *rest][:count]


def lost_prompts(project: Project, one: Round) -> dict[str, float]:
    """Arena prompts on which a round's adapter lost to the base model more often than not, with the share."""
    if not one.trained:
        return {}
    own, base = keys_judged_last(project, one)
    points: dict[str, list[float]] = {}
    for vote in read_votes(project.folder / ARENA):
        if not vote.skipped and {vote.left, vote.right} == {own, base}:
            points.setdefault(vote.prompt, []).append(0.5 if vote.best is None else float(vote.best == base))
    shares = {prompt: sum(said) / len(said) for prompt, said in points.items()}
    return {prompt: share for prompt, share in shares.items() if share > 0.5}


def closeness(prompt: str, lost: Mapping[str, float]) -> float:
    """Similarity of a prompt to a lost one: the share of their words that both contain, 0 to 1."""
    words = _words(prompt)
    return max(
        (share * len(words & _words(one)) / len(words | _words(one)) for one, share in lost.items()),
        default=0.0,
    )


def _words(prompt: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", normalise_prompt(prompt).lower()))


def certainty_of_tasks(project: Project) -> dict[str, float]:
    """Certainty of the newest picks of each task, 0 to 1, by its ``key``; 0 if it gave no pair."""
    found: dict[str, float] = {}
    for one in project.rounds():
        found |= {image.task.key: 0.0 for image in one.images()}
        store = one.pairs / STORE_NAME
        pairs = [json.loads(row[0]) for row in peek(store, _PAIRS)]
        tasks = {pair["pair_id"]: task_of_pair(pair).key for pair in pairs}
        newest: dict[str, list[float]] = {}
        for (text,) in peek(store, _PICKS):
            payload = json.loads(text)
            for pair_id in payload.get("pair_ids", []):
                if pair_id in tasks:
                    newest.setdefault(tasks[pair_id], []).append(payload.get("certainty") or 0.5)
        found |= {prompt: sum(values) / len(values) for prompt, values in newest.items()}
    return found


def task_of_pair(pair: Mapping[str, Any]) -> Task:
    """Return the task of the images of a pair."""
    digests = [str(one["sha256"]) for one in pair.get("source_images", [])]
    return Task(str(pair["prompt"]), name_of_digests(digests) if digests else "")


_PAIRS = "SELECT entry FROM pairs"
_PICKS = "SELECT payload FROM events WHERE undone = 0 AND kind = 'pick' ORDER BY seq"
