"""The prompts of a project: expanding choices, and holding out prompts for judging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from pathlib import Path
from typing import NamedTuple

from modules.project.candidates.SourceShelf import name_of_sources
from modules.spec.FamilySpec import FamilySpec
from modules.util.display import counted
from modules.util.errors import DataError, list_offenders
from modules.util.image_metadata_util import normalise_prompt
from modules.util.owned_files import shown
from modules.util.prompts_file import PromptRow, prompts_of_text, read_prompt_rows
from modules.util.rng import python_random

Prompts = Path | str | Sequence[PromptRow]
"""A file of prompts, its text, or its lines."""
FLAG = "--prompts"
MOST_OF_A_LINE = 256
HELD_OUT_SHARE = 0.2
MOST_DEEP = 32


@dataclass(frozen=True, order=True)
class Task:
    """A prompt and the sources it edits. Images of one task are compared with one another, and with no others.

    Args:
        prompt: the prompt; of an edit the instruction.
        source: name of the source images in the project, which follows from their contents; empty for a prompt alone.
    """

    prompt: str
    source: str = ""

    @property
    def group(self) -> str:
        """Its name in records: the prompt, after the source's name if there is one."""
        return f"{self.source}\n{self.prompt}" if self.source else self.prompt

    @property
    def key(self) -> str:
        """As ``group``, without what generators add to prompts. Images are grouped by it."""
        return Task(normalise_prompt(self.prompt), self.source).group


class Given(NamedTuple):
    """A task of a file, and the source images where they lie."""

    task: Task
    sources: tuple[Path, ...] = ()


def written_out(line: str) -> list[str]:
    """Expand a line with ``{a|b}`` choices, which may hold others, into all its prompts, each once and in order.

    Raises:
        DataError: there are too many prompts, or choices are nested too deeply.
    """
    return list(dict.fromkeys(" ".join(one.split()) for one in _expanded(line, line, MOST_DEEP)))


def _expanded(text: str, line: str, deep: int) -> list[str]:
    """The prompts of a text of this line; braces without ``|`` stay.

    Args:
        deep: how deeply choices may be nested in it.
    """
    if "|" not in text:
        return [text]
    if not deep:
        raise DataError(
            f"the choices of {line[:80]!r} are nested more than {MOST_DEEP} deep", "prompts.txt", "write several lines"
        )
    pieces: list[list[str]] = []
    for part in _parts(text):
        choices = _choices(part)
        if choices is None:
            pieces.append([part])
        elif len(choices) == 1:
            pieces.append([f"{{{one}}}" for one in _expanded(choices[0], line, deep - 1)])
        else:
            pieces.append(list(dict.fromkeys(made for one in choices for made in _expanded(one, line, deep - 1))))
    count = prod(len(piece) for piece in pieces)
    if count > MOST_OF_A_LINE:
        raise DataError(
            f"the choices of {line!r} make {count} prompts; up to {MOST_OF_A_LINE} are possible",
            "prompts.txt",
            "write several lines with fewer choices",
        )
    return ["".join(chosen) for chosen in product(*pieces)]


def _parts(text: str) -> list[str]:
    """Cut a text before and after each outermost pair of braces. A brace without its partner is plain text."""
    opened: list[int] = []
    pairs: list[tuple[int, int]] = []
    for at, letter in enumerate(text):
        if letter == "{":
            opened.append(at)
        elif letter == "}" and opened:
            begin = opened.pop()
            while pairs and pairs[-1][0] > begin:
                pairs.pop()
            pairs.append((begin, at + 1))
    ends = [0, *(end for pair in pairs for end in pair), len(text)]
    return [text[begin:end] for begin, end in pairwise(ends)]


def _choices(part: str) -> list[str] | None:
    """The texts between the bars of a pair of braces, those in inner braces left alone; ``None`` for plain text."""
    if not (part.startswith("{") and part.endswith("}")):
        return None
    depth, texts = 0, [""]
    for letter in part[1:-1]:
        depth += (letter == "{") - (letter == "}")
        if letter == "|" and depth == 0:
            texts.append("")
        else:
            texts[-1] += letter
    return texts


def read_rows(given: Prompts, place: str = FLAG) -> list[PromptRow]:
    """The lines of a file or a text, as they are written.

    Args:
        place: what messages name as their origin.

    Raises:
        DataError: they are unreadable, or a line is wrong.
    """
    try:
        if isinstance(given, Path):
            return read_prompt_rows(given)
        if isinstance(given, str):
            return [PromptRow(text) for text in prompts_of_text(given, "the list")]
    except DataError as error:
        # these files are not those of a run's setting
        raise DataError(error.message, place, error.hint) from error
    return list(given)


def read_tasks(given: Prompts, place: str = FLAG) -> list[Given]:
    """Read the tasks of a file or a text, with choices expanded and duplicates removed.

    Prompts that are equal after removing generator tags count as duplicates, because images are grouped this
    way. The same prompt with another source is another task.

    Args:
        place: what messages name as their origin.

    Raises:
        DataError: there are no tasks, or only some have a source image.
    """
    found: dict[str, Given] = {}
    for row in read_rows(given, place):
        source = name_of_sources(row.sources) if row.sources else ""
        for prompt in written_out(row.text):
            one = Given(Task(prompt, source), row.sources)
            found.setdefault(one.task.key, one)
    made = list(found.values())
    without = [one.task.prompt for one in made if not one.sources]
    if 0 < len(without) < len(made):
        raise DataError(
            f"{counted(len(without), 'prompt has', 'prompts have')} no source image, but others have one:\n"
            f"{list_offenders([shown(text, 60) for text in without])}",
            place,
            'write {"prompt": ..., "source": ...} in each line, or a source in none',
        )
    return made


def check_tasks(given: Sequence[Given], spec: FamilySpec) -> None:
    """Check that a family can make images of these tasks.

    Raises:
        DataError: it edits images and there are none, takes none, or fewer than there are.
    """
    counts = sorted({len(one.sources) for one in given})
    if spec.edits_only and not counts[0]:
        raise DataError(
            f"{spec.label} edits images, but the prompts have no source images",
            "--prompts",
            'name the images to edit with --to-edit, or a .jsonl file with {"prompt": ..., "source": ...} in each line',
        )
    if counts[-1] and not spec.sources:
        raise DataError(
            f"the prompts have source images, but {spec.label} takes none",
            "--model-type",
            "choose a model that edits images, or prompts without source images",
        )
    if counts[-1] > spec.sources or counts[0] != counts[-1]:
        most = f"{spec.label} takes at most {spec.sources}"
        raise DataError(
            f"some prompts have {counts[0]} source images and others {counts[-1]}"
            if counts[0] != counts[-1]
            else f"the prompts have {counted(counts[-1], 'source image')}, but {most}",
            "--prompts",
            "a second source is next to the first, as cat.2.png; give all prompts the same number of them",
        )


def hold_out(tasks: Sequence[Task], seed: int) -> list[Task]:
    """Choose the tasks held out for judging: a fifth, at least one.

    Raises:
        DataError: there are fewer than three.
    """
    if len(tasks) < 3:
        raise DataError(
            f"{counted(len(tasks), 'prompt is', 'prompts are')} too few: some are kept for judging",
            "--prompts",
            "write at least 3; 20 or more are better",
        )
    order = list(tasks)
    python_random("taste-held-out", seed).shuffle(order)
    return sorted(order[: max(1, round(HELD_OUT_SHARE * len(tasks)))])
