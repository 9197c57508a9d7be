"""The contestants of a project's arena, with images of the held-out prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from modules.arena.Arena import USUAL_VOTES, Arena, check_different
from modules.arena.Contestant import Contestant, Question
from modules.arena.picture import picture_of_votes
from modules.arena.tally import Tally
from modules.arena.VoteStore import VoteStore, read_votes
from modules.project.Project import ARENA, Adapter, Project
from modules.project.prompts import Task
from modules.project.Round import Round, write_json_in
from modules.util.display import counted
from modules.util.errors import DataError
from modules.util.files.user_path import user_path
from modules.util.image_metadata_util import normalise_prompt
from modules.util.rng import digest64

USUAL_QUESTIONS = 60
SEEN_AT = "#source-"
Progress = Callable[[str], None]


def questions(project: Project, count: int) -> list[tuple[Task, int]]:
    """The first ``count`` of an endless list of questions: the held-out prompts in turn, each time with
    another seed.
    """
    tasks = project.file.held_out_tasks
    return [
        (tasks[i % len(tasks)], digest64("taste-arena", project.file.seed, i) % 2**32) for i in range(count)
    ]


def prepare(
    project: Project, adapters: Sequence[Adapter], count: int, progress: Progress
) -> list[Contestant]:
    """Prepare the images of adapters for the questions, making missing ones. May be called again after a stop."""
    left = sum(not path.is_file() for adapter in adapters for path in _files(project, adapter, count))
    total, done = counted(left, "image"), 0

    def made(adapter: Adapter) -> None:
        nonlocal done
        done += 1
        progress(f"{adapter.name}: {done}/{total}")

    return [_prepare(project, adapter, count, partial(made, adapter)) for adapter in adapters]


def _files(project: Project, adapter: Adapter, count: int) -> list[Path]:
    """The image of each question."""
    size = _size(project)
    name = adapter.key.replace("@", "-at-") + ("" if size is None else f"-source-{size}")
    folder = project.folder / ARENA / "images" / name
    return [folder / f"{i:04d}-{seed}.png" for i, (_, seed) in enumerate(questions(project, count))]


def _prepare(project: Project, adapter: Adapter, count: int, made: Callable[[], None]) -> Contestant:
    wanted, files = questions(project, count), _files(project, adapter, count)
    missing = [i for i, path in enumerate(files) if not path.is_file()]
    requests = [project.request(*wanted[i], adapter, _size(project)) for i in missing]
    if requests:
        generator = project.generator()
        project.check_requests(generator, requests)
        with closing(generator.generate(requests)) as stream:
            for image in stream:
                file = files[missing[image.number]].relative_to(project.folder)
                with project.owned.write(file.as_posix()) as temporary:
                    temporary.write_bytes(image.data)
                made()
    asked: list[Question] = [(normalise_prompt(task.prompt), seed) for task, seed in wanted]
    sources = {
        question: project.shelf.files(task.source)
        for question, (task, _) in zip(asked, wanted, strict=True)
        if task.source
    }
    return Contestant(
        adapter.name, contestant_key(project, adapter), dict(zip(asked, files, strict=True)), sources
    )


def _size(project: Project) -> int | None:
    return project.file.image.source_resolution if project.scales_sources else None


def contestant_key(project: Project, adapter: Adapter) -> str:
    """The key of a contestant made now. It ends with the size of the source images if they are scaled, because the
    images are others at every size.
    """
    size = _size(project)
    return adapter.key if size is None else f"{adapter.key}{SEEN_AT}{size}"


def key_of_adapter(key: str) -> str:
    """The key of a contestant's adapter, whatever the size of its source images."""
    return key.partition(SEEN_AT)[0]


def keys_judged_last(project: Project, one: Round) -> tuple[str, str]:
    """The keys of a round's adapter and of the base model, at the size of the sources of the newest vote on it."""
    key = Adapter(one.name, one.adapter_path).key
    votes = read_votes(project.folder / ARENA)
    known = [name for vote in votes for name in (vote.left, vote.right) if key_of_adapter(name) == key]
    seen_at = known[-1].removeprefix(key) if known else ""
    return key + seen_at, "base" + seen_at


def adapters_between(project: Project, text: str) -> list[Adapter]:
    """Parse ``A,B[,C]`` as adapters; by default the newest against the base model.

    Raises:
        DataError: there is nothing to compare, or the same contestant twice.
    """
    if text:
        adapters = [project.adapter(part) for part in _contestants(text)]
        check_different([contestant_key(project, adapter) for adapter in adapters])
        return adapters
    newest = project.newest
    if newest.file is None:
        raise DataError("there is no adapter to compare", "--between", "train one first")
    return [newest, Adapter("base")]


def _contestants(text: str) -> list[str]:
    """The parts of ``A,B[,C]``. A comma in the path of a file that exists separates nothing."""
    found: list[str] = []
    parts = text.split(",")
    while parts:
        taken = next((n for n in range(len(parts), 1, -1) if _is_file(",".join(parts[:n]).strip())), 1)
        found.append(",".join(parts[:taken]).strip())
        del parts[:taken]
    return found


def _is_file(text: str) -> bool:
    """Return whether a file is named, with or without a strength."""
    name, at, _ = text.rpartition("@")
    try:
        return any(user_path(one).is_file() for one in (text, *([name] if at else [])))
    except OSError:  # several paths together can be too long for one
        return False


@contextmanager
def open_arena(
    project: Project,
    adapters: Sequence[Adapter],
    progress: Progress,
    votes: int = USUAL_VOTES,
    count: int = USUAL_QUESTIONS,
) -> Iterator[Arena]:
    """Open the arena with these contestants, whose images exist. On exit, writes ``result.json`` and
    ``result.png``.
    """
    with project.busy():
        contestants = prepare(project, adapters, count, progress)
    judging = {normalise_prompt(prompt) for prompt in project.file.held_out}
    with VoteStore(project.folder / ARENA) as store:
        arena = Arena(store, contestants, project.file.seed, votes, judging.__contains__)
        yield arena
        if arena.tally.votes:
            _keep_result(project, arena)


def _keep_result(project: Project, arena: Arena) -> None:
    """Write the result of the votes as JSON and as a picture."""
    told = arena.tally.to_dict()
    write_json_in(project.owned, f"{ARENA}/result.json", told)
    with project.owned.write(f"{ARENA}/result.png") as temporary:
        temporary.write_bytes(picture_of_votes(arena.voted(), str(told["sentence"])))


def tally_of(project: Project, adapters: Sequence[Adapter]) -> Tally:
    """The votes on these adapters so far. Makes nothing, and works while another program asks."""
    keys = [contestant_key(project, adapter) for adapter in adapters]
    check_different(keys)
    return Tally([adapter.name for adapter in adapters], keys, read_votes(project.folder / ARENA))


def verdict(project: Project, one: Round) -> dict[str, Any] | None:
    """The result of the votes on a round's adapter against the base model; ``None`` without votes. Of edits, only
    images that were made with sources of one size are compared.
    """
    if not one.trained:
        return None
    keys = list(keys_judged_last(project, one))
    tally = Tally([one.name, "base"], keys, read_votes(project.folder / ARENA))
    if not tally.votes:
        return None
    made = tally.to_dict()
    return {name: made[name] for name in ("votes", "decided", "win_rate", "interval", "sentence")}
