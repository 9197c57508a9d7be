"""The prompts of a project: expanding choices, and holding out prompts for judging."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from math import prod
from pathlib import Path

from modules.util.errors import DataError
from modules.util.image_metadata_util import normalise_prompt
from modules.util.prompts_file import prompts_of_text, read_prompts_file
from modules.util.rng import python_random

MOST_OF_A_LINE = 256
HELD_OUT_SHARE = 0.2
_CHOICE = re.compile(r"\{([^{}]*\|[^{}]*)\}")


def written_out(line: str) -> list[str]:
    """Expand a line with ``{a|b}`` choices into all its prompts, in order.

    Raises:
        DataError: there are too many prompts.
    """
    pieces = [part.split("|") if i % 2 else [part] for i, part in enumerate(_CHOICE.split(line))]
    count = prod(len(piece) for piece in pieces)
    if count > MOST_OF_A_LINE:
        raise DataError(
            f"the choices of {line!r} make {count} prompts; up to {MOST_OF_A_LINE} are possible",
            "prompts.txt",
            "write several lines with fewer choices",
        )
    return [" ".join("".join(chosen).split()) for chosen in product(*pieces)]


def read_prompts(given: Path | str) -> list[str]:
    """Read the prompts of a file or a text, with choices expanded and duplicates removed.

    Prompts that are equal after removing generator tags count as duplicates, because images are grouped this
    way.
    """
    found: dict[str, str] = {}
    lines = read_prompts_file(given) if isinstance(given, Path) else prompts_of_text(given, "the list")
    for line in lines:
        for prompt in written_out(line):
            found.setdefault(normalise_prompt(prompt), prompt)
    return list(found.values())


def hold_out(prompts: Sequence[str], seed: int) -> list[str]:
    """Choose the prompts held out for judging: a fifth, at least one.

    Raises:
        DataError: there are fewer than three prompts.
    """
    if len(prompts) < 3:
        raise DataError(
            f"{len(prompts)} prompts are too few: some are kept for judging",
            "--prompts",
            "write at least 3; 20 or more are better",
        )
    order = list(prompts)
    python_random("taste-held-out", seed).shuffle(order)
    return sorted(order[: max(1, round(HELD_OUT_SHARE * len(prompts)))])
