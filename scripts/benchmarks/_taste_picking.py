"""Answers as they are given in the pair tool: some questions about each prompt, then its pairs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from modules.curation.group_state import Phase, SessionSettings
from modules.curation.intake.groups import ScanOptions, scan_groups
from modules.curation.intake.scan import ScanFault
from modules.curation.session import CurationSession
from modules.curation.store import CurationStore
from modules.util.errors import DataError
from scripts.benchmarks._taste_images import Images
from scripts.benchmarks._taste_spec import IMAGES_PER_PROMPT, PROMPT_CLICKS
from scripts.demo.metadata import STYLES, Made, write_image
from scripts.demo.sampling import CFG_SCALE, STEPS
from scripts.demo.world import SIZE

PAIRS = 2
"""Of a prompt: best over worst, second best over second worst."""


def with_the_pair_tool(
    images: Images, ask: Callable[[int, int], int | None], folder: Path, seed: int, answers: int
) -> None:
    """Write the images as a generator does, and answer exactly as many questions about them."""
    source, output = folder / "images", folder / "pairs"
    source.mkdir(parents=True)
    place_of: dict[Path, int] = {}
    prompts = -(-answers // PROMPT_CLICKS)
    for place in range(min(prompts * IMAGES_PER_PROMPT, len(images.pixels))):
        made = Made(images.prompts[place], place, STEPS, CFG_SCALE, SIZE, SIZE)
        style = list(STYLES)[place // IMAGES_PER_PROMPT % len(STYLES)]
        place_of[write_image(source, f"{place:05d}", images.pixels[place], made, style).resolve()] = place
    given = 0
    with CurationStore(output) as store:
        session = CurationSession(store, SessionSettings(pairs_per_group=PAIRS, seed=seed))
        found = {}
        for group in scan_groups(source, output, ScanOptions(seed=seed, near_duplicates=None)):
            if isinstance(group, ScanFault):
                raise DataError(f"{group.path}: {group.reason}")
            found[group.key] = group
        for group in found.values():
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
