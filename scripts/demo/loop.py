"""The taste loop with a simulated person: a project, and rounds of making images, picking, training and comparing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from modules.arena.ArenaServer import ArenaServer
from modules.curation.group_state import SessionSettings
from modules.project.making import generate
from modules.project.picking import serve_picks
from modules.project.Project import Adapter, Project
from modules.project.proving import adapters_between, open_arena
from modules.project.rounds import new_round
from modules.project.training import Method, train
from modules.util.errors import ConfigError
from modules.util.jsonio import write_json, write_text
from modules.util.rng import digest64
from scripts.curate import ProgressLine
from scripts.demo.answering import CLICKS, Answering
from scripts.demo.judging import Judge, contact_sheet, win_rate
from scripts.demo.plan import LOOP, Journey
from scripts.demo.sampling import CFG_SCALE, SAMPLER, STEPS, Report
from scripts.demo.taste import Person, get_taste
from scripts.demo.world import SIZE, Wish, combinations

IMAGES_PER_PROMPT = 5
USUAL_ROUNDS = 3
USUAL_ANSWERS = 50
BASE_PER_PROMPT = 64
"""The largest N of the best of N; adapters of several rounds are beyond the best of 16."""
VOTES = 40


@dataclass(frozen=True)
class Loop:
    """A loop of the demo.

    Args:
        journey: folder, seed, taste, slips and model.
        rounds: how many.
        answers: that the person gives in each round; votes of the arena are not among them.
        base_per_prompt: images of the base model for each judging prompt; the curve of the best of N comes from them.
        judged: images of each adapter that are judged.
        judging_prompts: how many of the held-out prompts they show.
        votes: of the arena, at most.
        method: what a round learns from.
        epochs: of a round's training; ``None`` leaves them to the preset.
    """

    journey: Journey
    rounds: int = USUAL_ROUNDS
    answers: int = USUAL_ANSWERS
    base_per_prompt: int = BASE_PER_PROMPT
    judged: int = 108
    judging_prompts: int = 12
    votes: int = VOTES
    method: Method = Method.TASTE
    epochs: int | None = None

    def check(self) -> None:
        """Check everything that can be checked before work begins."""
        self.journey.check()
        for name, value, least in (("--rounds", self.rounds, 1), ("--answers", self.answers, 12)):
            if value < least:
                raise ConfigError(f"{value} is too few", name, f"{least} or more")


def judge_of(loop: Loop, project: Project, report: Report) -> Judge:
    """The judge of adapters, on the held-out prompts of a project."""
    prompts = project.file.held_out[: loop.judging_prompts]
    asked = [(prompt, number) for number in range(loop.base_per_prompt) for prompt in prompts]
    seeds = [
        digest64("demo-loop-judged", loop.journey.seed, number, prompt) % 2**32 for prompt, number in asked
    ]
    each = min(loop.base_per_prompt, -(-loop.judged // len(prompts)))
    wishes = [Wish.parse(prompt) for prompt, _ in asked]
    return Judge(loop.journey, wishes, seeds, len(prompts), each, report)


def run_loop(loop: Loop, report: Report) -> dict[str, Any]:
    """Run the loop; return the contents of ``report.json``."""
    loop.check()
    begin = time.monotonic()
    journey, taste = loop.journey, get_taste(loop.journey.taste)
    project = new_project(loop)
    person = Person(taste, journey.seed, journey.error_rate)
    judge = judge_of(loop, project, report)
    rounds: list[dict[str, Any]] = []
    before = judge.base
    for number in range(1, loop.rounds + 1):
        if number > 1:
            new_round(project, surplus=1)
        trained = one_round(loop, project, person, report)
        after = judge.adapter(project.round.adapter_path, f"round {number}")
        rounds.append(
            {
                **trained,
                "answers_total": sum(one["answers"] for one in rounds) + trained["answers"],
                "win_rate_base": win_rate(after.scores, judge.base.scores),
                "win_rate_previous": win_rate(after.scores, before.scores),
                "best_of_n": judge.best_of_n(after),
                "liking": after.attribute,
                "fidelity": after.fidelity,
                "fidelity_loss": judge.base.fidelity - after.fidelity,
                "arena": _compare(project, person, loop.votes),
            }
        )
        said = rounds[-1]
        report(f"round {number}: best of {said['best_of_n']:.1f}, win rate {said['win_rate_base']:.0%}")
        before = after
    contact_sheet(journey.out / "before_after.png", judge.base.pixels, before.pixels, taste)
    made = {
        **journey.facts(),
        "mode": LOOP,
        "method": loop.method.value,
        "judged": len(judge.base.pixels),
        "liking_base": judge.base.attribute,
        "fidelity_base": judge.base.fidelity,
        "rounds": rounds,
        "total_seconds": round(time.monotonic() - begin, 1),
        "project": str(project.folder),
    }
    write_json(journey.out / "report.json", made)
    return made


def new_project(loop: Loop, wishes: Sequence[Wish] | None = None) -> Project:
    """Create a project with some prompts (all of the world's by default); it holds out a fifth of them itself."""
    journey = loop.journey
    journey.out.mkdir(parents=True, exist_ok=True)
    prompts = journey.out / "prompts.txt"
    every = [*combinations(held_out=False), *combinations(held_out=True)] if wishes is None else wishes
    write_text(prompts, "".join(f"{wish.caption()}\n" for wish in every))
    settings = {
        "model": {"type": "STABLE_DIFFUSION_15", "base": str(journey.model)},
        "generator": {"kind": "own", "device": "cpu"},
        "image": {"width": SIZE, "height": SIZE, "steps": STEPS, "cfg": CFG_SCALE, "sampler": SAMPLER},
        "seed": journey.seed,
        # flat images look the same to a hash made for photographs
        "near_duplicates": -1,
    }
    return Project.create(journey.out / "taste", settings, prompts, None)


def one_round(loop: Loop, project: Project, person: Person, report: Report) -> dict[str, Any]:
    """Make images, answer and train; return the round's row of the report."""
    one = project.round
    count = -(-loop.answers // CLICKS) if one.number == 1 else None
    progress = ProgressLine()
    report(f"{one.name}: making images, picking, training")
    made = generate(project, progress, IMAGES_PER_PROMPT, None, count)
    answering = Answering(person, loop.answers, CLICKS, one.name)
    serve_picks(project, SessionSettings(seed=project.file.seed), *answering.as_streams(), progress)
    fewer = [] if loop.epochs is None else [f"epochs={loop.epochs}"]
    trained = train(project, progress, [*fewer, *loop.journey.overrides], False, loop.method)
    head = trained["taste"] or {}
    return {
        "answers": answering.given,
        "pairs": trained["pairs"],
        "candidates": made["candidates"],
        "steps": trained["steps"],
        "head_accuracy": head.get("accuracy"),
    }


def _compare(project: Project, person: Person, votes: int) -> dict[str, Any]:
    """Run the blind vote between the round's adapter and the base model."""
    adapters: list[Adapter] = adapters_between(project, "")
    answering = Answering(person, votes, None, f"arena of {project.round.name}")
    with open_arena(project, adapters, ProgressLine(), votes, votes) as arena:
        ArenaServer(arena, *answering.as_streams()).serve()
        made = arena.tally.to_dict()
    return {name: made[name] for name in ("votes", "decided", "win_rate", "interval", "sentence")}
