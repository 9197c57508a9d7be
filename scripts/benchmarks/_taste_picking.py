"""Answers as they are given in the pair tool: some questions about each prompt, or likes on pages of many prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.curation.CurationMode import CurationMode
from modules.curation.group_state import Phase, SessionSettings
from modules.curation.GroupsAhead import GroupsAhead
from modules.curation.GroupWalk import GroupWalk
from modules.curation.ImageGroup import ImageGroup
from modules.curation.intake.groups import ScanOptions, scan_groups
from modules.curation.intake.scan import ScanFault
from modules.curation.marking.Sheet import Sheet
from modules.curation.session import CurationSession
from modules.curation.store import CurationStore
from modules.util.errors import DataError
from scripts.benchmarks._taste_images import Images
from scripts.benchmarks._taste_spec import IMAGES_PER_PROMPT, PROMPT_CLICKS
from scripts.demo.metadata import STYLES, Made, write_image
from scripts.demo.sampling import CFG_SCALE, STEPS
from scripts.demo.world import SIZE
from scripts.train_reward import answer_comparisons

PAIRS = 2
"""Pairs of a prompt: best over worst, second best over second worst."""
SOURCE, OUTPUT = "images", "pairs"


def with_the_pair_tool(
    images: Images, ask: Callable[[int, int], int | None], folder: Path, seed: int, answers: int
) -> None:
    """Write the images as a generator does, and answer the given number of questions about them."""
    place_of, groups = _write(images, folder, -(-answers // PROMPT_CLICKS), seed)
    given = 0
    with CurationStore(folder / OUTPUT) as store:
        session = CurationSession(store, SessionSettings(pairs_per_group=PAIRS, seed=seed))
        for group in groups:
            state, here = session.open(group), 0
            while state.phase is Phase.QUESTION and here < PROMPT_CLICKS and given < answers:
                first, second = state.question
                said = ask(place_of[group.path(first).resolve()], place_of[group.path(second).resolve()])
                here, given = here + 1, given + 1
                state = (
                    session.answer(tie=True) if said is None else session.answer(best=state.question[said])
                )
            if state.phase is Phase.QUESTION and any(not one.tie for one in state.answers):
                order = state.standing.order(state.alive)
                session.export_ranked(order, min(PAIRS, len(order) // 2))


Judge = Callable[[Sequence[int]], Sequence[bool | None]]
"""A verdict on each image of a page: liked, disliked, or no mark."""


def with_the_grid(images: Images, judge: Judge, folder: Path, seed: int, answers: int) -> Marked:
    """Write the images as a generator does, and mark the given number of them on pages of many prompts.

    The person looks at the images one by one, and stops after the last mark.
    """
    place_of, groups = _write(images, folder, len(images.pixels) // IMAGES_PER_PROMPT, seed)
    given = 0
    with CurationStore(folder / OUTPUT) as store, GroupsAhead(lambda control: iter(groups)) as ahead:
        while ahead.status().searching:
            time.sleep(0.001)
        session = CurationSession(store, SessionSettings(CurationMode("GRID"), seed=seed))
        walk = GroupWalk(session, ahead, ask_to_continue=False)
        sheet = Sheet(walk)
        while walk.group is not None and given < answers:
            strips = sheet.strips()
            said = iter(judge([place_of[_file(one.group, name)] for one in strips for name in one.files]))
            drawn = {}
            for strip in strips:
                marks = {}
                for name in strip.files:
                    if given < answers:
                        marks[name] = next(said)
                        given += marks[name] is not None
                for name, like in marks.items():
                    if like is not None:
                        sheet.mark(strip.group.key, name, like)
                sheet.see(strip.group.key, list(marks))
                if len(marks) == len(strip.files):
                    drawn[strip.group.key] = list(marks)
            if drawn:
                sheet.close(drawn)
    found = answer_comparisons(folder / OUTPUT, folder / SOURCE)
    return Marked(
        given,
        [(place_of[one.better], place_of[one.worse]) for one in found],
        [one.weight for one in found],
    )


@dataclass(frozen=True)
class Marked:
    """Result of a grid.

    Args:
        count: likes and dislikes.
        comparisons: the better and the worse image of each comparison that a head learns from.
    """

    count: int
    comparisons: list[tuple[int, int]]
    weights: list[float]


def _file(group: ImageGroup, name: str) -> Path:
    return group.path(group.files.index(name)).resolve()


def _write(images: Images, folder: Path, prompts: int, seed: int) -> tuple[dict[Path, int], list[ImageGroup]]:
    """Write the images of some prompts; return the index of each file's image, and the groups."""
    source = folder / SOURCE
    source.mkdir(parents=True)
    place_of: dict[Path, int] = {}
    for place in range(min(prompts * IMAGES_PER_PROMPT, len(images.pixels))):
        made = Made(images.prompts[place], place, STEPS, CFG_SCALE, SIZE, SIZE)
        style = list(STYLES)[place // IMAGES_PER_PROMPT % len(STYLES)]
        place_of[write_image(source, f"{place:05d}", images.pixels[place], made, style).resolve()] = place
    found = {}
    for group in scan_groups(source, folder / OUTPUT, ScanOptions(seed=seed, near_duplicates=None)):
        if isinstance(group, ScanFault):
            raise DataError(f"{group.path}: {group.reason}")
        found[group.key] = group
    return place_of, list(found.values())
