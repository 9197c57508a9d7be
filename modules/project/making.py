"""Makes the missing images of a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from modules.generator.Generator import MakingNews
from modules.project.candidates.choosing import choose_shown
from modules.project.Project import Adapter, Project
from modules.project.prompts import Task
from modules.project.Round import Candidate, Round
from modules.util.display import counted
from modules.util.errors import DataError
from modules.util.rng import digest64, python_random

USUAL_PER_PROMPT = 6
MOST_PROMPTS = 60
Progress = Callable[[str], None]


def generate(
    project: Project,
    progress: Progress,
    per_prompt: int | None = None,
    adapter: Adapter | None = None,
    prompts: int | None = None,
) -> dict[str, int]:
    """Make the missing images of the current round. May be stopped at any time and called again.

    Args:
        per_prompt: number of images per prompt; may be increased later.
        adapter: adapter to use; by default that of the plan, else the newest. Fixed once an image exists.
        prompts: maximum number of prompts in the first round; later rounds use those chosen by ``new_round``.

    Returns:
        ``candidates``: number of candidates; ``made``: number of new ones.
    """
    with project.busy():
        one = project.round
        _decide(project, one, per_prompt, adapter, prompts)
        missing = one.missing()
        used = _adapter_of(project, one)
        requests = [
            project.request(image.task, image.seed, used, one.plan.get("source_resolution"))
            for image in missing
        ]
        made = 0
        if requests:
            generator = project.generator()
            project.check_requests(generator, requests)
            generator.on_news = partial(_tell, one, len(missing), progress)
            try:
                with closing(generator.generate(requests)) as images:
                    for image in images:
                        one.keep_image(missing[image.number], image.data)
                        made += 1
                        progress(f"{one.name}: {made}/{counted(len(missing), 'image')}")
            finally:
                one.keep_preview(b"")
        choose_shown(project, one, progress)
        return {"round": one.number, "candidates": len(one.images()) - len(one.missing()), "made": made}


def _tell(one: Round, count: int, progress: Progress, news: MakingNews) -> None:
    """Report the progress of the current image, and save its newest preview in the round's folder."""
    if news.preview:
        one.keep_preview(news.preview)
    if news.step is not None:
        progress(f"{one.name}: image {news.number + 1} of {count}, step {news.step}/{news.steps or '?'}")


def _adapter_of(project: Project, one: Round) -> Adapter:
    stored = one.plan["adapter"]
    return Adapter(stored or "base", project.folder / stored if stored else None, float(one.plan["strength"]))


def _decide(
    project: Project, one: Round, per_prompt: int | None, adapter: Adapter | None, most: int | None
) -> None:
    """Write the plan if there is none or it grows."""
    planned = one.images()
    begun = any(one.made(image) for image in planned)
    if begun and adapter is not None:
        before = _adapter_of(project, one)
        if not _are_same(before, adapter):
            raise DataError(
                f"images of {one.name} were already made with {before.name} at {before.strength:g}",
                "--adapter",
                "leave it out, or begin a new round",
            )
        adapter = None
    prompts = list(dict.fromkeys(image.task for image in planned))
    if prompts and most is not None and most != len(prompts):
        raise DataError(
            f"{one.name} already has {counted(len(prompts), 'prompt')}", "--prompts", "leave it out"
        )
    if not prompts:
        project.keep_sources()
        prompts, most = project.tasks(), most or MOST_PROMPTS
        if len(prompts) > most:
            prompts = sorted(python_random("taste-prompts", project.file.seed).sample(prompts, most))
    write_plan(project, one, prompts, per_prompt, adapter and project.kept_for(one, adapter))


def _are_same(one: Adapter, other: Adapter) -> bool:
    """Return whether both make the same images, wherever their files are."""
    files = one.file, other.file
    same = one.file == other.file or (
        all(file is not None and file.is_file() for file in files)
        and one.at(1.0).key == other.at(1.0).key
    )
    return same and one.strength == other.strength


@dataclass(frozen=True)
class Surplus:
    """A surplus of images, from which those to show are chosen.

    Args:
        times: factor relative to the images shown.
        without: tasks without a surplus, by ``group``, whose images are shown at random.
    """

    times: int = 1
    without: frozenset[str] = frozenset()


def write_plan(
    project: Project,
    one: Round,
    tasks: Sequence[Task],
    per_prompt: int | None,
    adapter: Adapter | None,
    surplus: Surplus | None = None,
) -> None:
    """Plan images of these tasks. Images planned before stay.

    Args:
        surplus: surplus of a new plan; an existing plan keeps its own.
    """
    planned = one.images()
    had = Counter(image.task.group for image in planned)
    if planned:
        without = frozenset(had) - one.pools().keys()
        surplus = Surplus(int(one.plan.get("surplus", 1)), without)
    surplus = surplus or Surplus()
    wanted = per_prompt or one.shown or (max(had.values()) if had else USUAL_PER_PROMPT)
    images = list(planned)
    for place, task in enumerate(tasks):
        count = wanted * (1 if task.group in surplus.without else surplus.times)
        for number in range(had[task.group], count):
            seed = digest64("taste-candidate", project.file.seed, one.number, task.key, number) % 2**32
            file = f"{place:03d}-{number:02d}-{seed}.png"
            images.append(Candidate(file, task.prompt, seed, task.source))
    # images that are compared see their sources at the same size
    size = one.plan.get("source_resolution") if planned else project.file.image.source_resolution
    if adapter is None and planned:
        file, strength = one.plan["adapter"], one.plan["strength"]
    else:
        used = adapter or project.newest
        file, strength = project.stored_name(used.file), used.strength
    one.write_plan(file, strength, images, surplus.times, max(wanted, one.shown), size)
