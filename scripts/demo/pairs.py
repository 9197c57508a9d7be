"""From prompts to preference pairs: images as a generator leaves them, picked through the pair tool's own core."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from modules.curation.group_state import Phase, SessionSettings
from modules.curation.ImageGroup import ImageGroup
from modules.curation.intake.groups import ScanOptions, scan_groups
from modules.curation.intake.scan import ScanFault
from modules.curation.session import CurationSession
from modules.curation.store import CurationStore
from modules.model.Model import Model
from modules.util.dpo_curation_util import finalize_export, load_manifest
from modules.util.errors import DataError
from modules.util.rng import digest64, python_random
from scripts.demo.judge import read_image
from scripts.demo.metadata import STYLES, Made, write_image
from scripts.demo.plan import Journey
from scripts.demo.sampling import CFG_SCALE, STEPS, Report, sample_pixels
from scripts.demo.taste import Person, get_taste
from scripts.demo.world import SIZE, Wish, combinations

NEW_PROMPTS_SHARE = 0.35
MOST_QUESTIONS = 60
AT_ONCE = 8


def prompt_split(seed: int) -> tuple[list[Wish], list[Wish]]:
    """(prompts to make pairs from, prompts the adapter is judged on): all say shape, colour and background only."""
    every = combinations(held_out=False) + combinations(held_out=True)
    python_random("demo-prompts", seed).shuffle(every)
    kept = round(NEW_PROMPTS_SHARE * len(every))
    return every[kept:], every[:kept]


def make_images(
    folder: Path, model: Model, wishes: Sequence[Wish], per_prompt: int, seed: int, report: Report
) -> list[Path]:
    """Sample ``per_prompt`` images for each wish into ``folder``, each written as one of the usual programs
    would.

    Images of an interrupted attempt are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prompts = [wish.caption() for wish in wishes for _ in range(per_prompt)]
    seeds = [digest64("demo-image", seed, i) % 2**32 for i in range(len(prompts))]
    there = {path.stem: path for path in folder.iterdir() if path.suffix in (".png", ".webp")}
    names = [f"{i:05d}-{seeds[i]}" for i in range(len(prompts))]
    missing = [i for i, name in enumerate(names) if name not in there]
    styles = list(STYLES)
    for start in range(0, len(missing), AT_ONCE):
        part = missing[start : start + AT_ONCE]
        pixels = sample_pixels(model, [prompts[i] for i in part], [seeds[i] for i in part])
        for i, image in zip(part, pixels, strict=True):
            made = Made(prompts[i], seeds[i], STEPS, CFG_SCALE, SIZE, SIZE)
            # one program for all images of a prompt, as in a user's folder
            there[names[i]] = write_image(
                folder, names[i], image, made, styles[i // per_prompt % len(styles)]
            )
        done = len(prompts) - len(missing) + start + len(part)
        report(f"making images to choose from: {done}/{len(prompts)} images")
    return [there[name] for name in names]


def load_pixels(path: Path) -> np.ndarray:
    """(64, 64, 3) uint8."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def pick_pairs(
    source: Path, output: Path, person: Person, pairs_per_prompt: int, seed: int, report: Report
) -> int:
    """Let a person choose in every group of ``source``; return the number of answered questions.

    Raises:
        DataError: an image lost its prompt on the way.
    """
    questions = 0
    output.mkdir(parents=True, exist_ok=True)
    # flat images look the same to a hash made for photographs
    options = ScanOptions(seed=seed, near_duplicates=None)
    with CurationStore(output) as store:
        session = CurationSession(store, SessionSettings(pairs_per_group=pairs_per_prompt, seed=seed))
        groups = _all_groups(source, output, options)
        for group in groups:
            questions += _choose_in(session, group, person)
        report(f"chose {len(session.pairs())} pairs from {len(groups)} prompts with {questions} answers")
    return questions


def _all_groups(source: Path, output: Path, options: ScanOptions) -> list[ImageGroup]:
    """The complete groups of a finished scan, in an order that does not depend on timing.

    Raises:
        DataError: an image lost its prompt on the way.
    """
    groups: dict[str, ImageGroup] = {}
    for found in scan_groups(source, output, options):
        if isinstance(found, ScanFault):
            raise DataError(f"{found.path}: {found.reason}")
        groups[found.key] = (
            found  # a group may arrive twice while the folder is still being read; the later one is complete
        )
    return sorted(groups.values(), key=lambda group: digest64("demo-groups", options.seed, group.key))


def _choose_in(session: CurationSession, group: ImageGroup, person: Person) -> int:
    wish = Wish.parse(group.prompt)
    scores = [
        person.taste.score(read_image(load_pixels(group.path(i))), wish) for i in range(len(group.files))
    ]
    state, asked = session.open(group), 0
    while state.phase is Phase.QUESTION:
        if asked >= MOST_QUESTIONS * max(1, state.pairs_target):
            state = session.pick_now()
            continue
        first, second = state.question
        asked += 1
        preferred = person.prefer(scores[first], scores[second], group.key, first, second, asked)
        state = (
            session.answer(tie=True) if preferred is None else session.answer(best=state.question[preferred])
        )
    if state.phase is Phase.CONTINUE:
        session.finish_group()
    return asked


def picked(journey: Journey, wishes: Sequence[Wish], model: Model, report: Report) -> tuple[int, int, int]:
    """Make a journey's images and let its person choose; (answers, pairs to train on, pairs held out)."""
    out, size, seed = journey.out, journey.size, journey.seed
    make_images(out / "images", model, wishes[: size.prompts], size.images_per_prompt, seed, report)
    person = Person(get_taste(journey.taste), seed, journey.error_rate)
    answers = pick_pairs(out / "images", out / "pairs", person, size.pairs_per_prompt, seed, report)
    return (answers, *finalise(out / "pairs", 20.0))


def finalise(output: Path, validation_percentage: float) -> tuple[int, int]:
    """Split the pairs by prompt and write ``concepts.json``; (pairs to train on, held out)."""
    return finalize_export(output, load_manifest(output), validation_percentage)
