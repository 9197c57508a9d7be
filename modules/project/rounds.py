"""How a project stands, what comes next, and the prompts of the next round."""

from __future__ import annotations

import json
from typing import Any

from modules.curation.store import STORE_NAME
from modules.project.judging import judgement_of_round
from modules.project.making import write_plan
from modules.project.Project import Project
from modules.project.proving import verdict
from modules.project.Round import Round
from modules.project.training import steps_of
from modules.util.errors import UserError
from modules.util.files.EventLog import peek
from modules.util.image_metadata_util import normalise_prompt
from modules.util.rng import python_random

ENOUGH_PAIRS = 48
RANDOM_SHARE = 0.2


def status(project: Project) -> dict[str, Any]:
    """The rounds, and what comes next; nothing is locked or changed."""
    return {"rounds": [_row(project, one) for one in project.rounds()], "next": next_step(project)}


def _row(project: Project, one: Round) -> dict[str, Any]:
    planned, missing = len(one.images()), len(one.missing())
    return {
        "candidates": planned - missing,
        "planned": planned,
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
    if one.trained:
        return "new-round" if verdict(project, one) else "compare"
    if one.run.launch_record():
        return "train"
    if not one.images() or one.missing():
        return "generate"
    picked = one.pair_count >= ENOUGH_PAIRS or one.groups_done >= one.prompt_count
    return "train" if picked and one.pair_count >= 2 else "pick"


def new_round(project: Project, per_prompt: int | None = None) -> dict[str, Any]:
    """Begin the next round: its images are decided, none is made.

    Raises:
        UserError: the round at work is not trained.
    """
    with project.busy():
        one = project.round
        if not one.trained:
            raise UserError(f"{one.name} is not trained yet", hint=f"what comes now: {next_step(project)}")
        following = Round(project.owned, one.number + 1)
        prompts = prompts_by_need(project, one)
        before = len(one.images()) // max(1, one.prompt_count)
        write_plan(project, following, prompts, per_prompt or before or None, project.newest)
        return {"round": following.number, "prompts": len(prompts), "planned": len(following.images())}


def prompts_by_need(project: Project, one: Round) -> list[str]:
    """As many prompts as the round before had: a fifth at random, else those that are least certain, new ones first."""
    every = project.prompts()
    count = min(len(every), one.prompt_count)
    rng = python_random("taste-next", project.file.seed, one.number)
    rng.shuffle(every)
    by_chance = every[: round(RANDOM_SHARE * count)]
    certainty = certainty_of_prompts(project)
    rest = sorted(every[len(by_chance) :], key=lambda prompt: certainty.get(normalise_prompt(prompt), -1.0))
    return [*by_chance, *rest][:count]


def certainty_of_prompts(project: Project) -> dict[str, float]:
    """How certain the newest picks of each prompt were, 0 to 1; 0 for one that gave no pair."""
    found: dict[str, float] = {}
    for one in project.rounds():
        found |= {normalise_prompt(image.prompt): 0.0 for image in one.images()}
        store = one.pairs / STORE_NAME
        prompts = {json.loads(row[0])["pair_id"]: json.loads(row[0])["prompt"] for row in peek(store, _PAIRS)}
        newest: dict[str, list[float]] = {}
        for (text,) in peek(store, _PICKS):
            payload = json.loads(text)
            for pair_id in payload.get("pair_ids", []):
                if pair_id in prompts:
                    newest.setdefault(prompts[pair_id], []).append(payload.get("certainty") or 0.5)
        found |= {prompt: sum(values) / len(values) for prompt, values in newest.items()}
    return found


_PAIRS = "SELECT entry FROM pairs"
_PICKS = "SELECT payload FROM events WHERE undone = 0 AND kind = 'pick' ORDER BY seq"
