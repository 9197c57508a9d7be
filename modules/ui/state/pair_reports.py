"""Reports on the pairs of a config before training. No Tk here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from modules.curation.intake.image_size import image_size
from modules.ui.state.folder_stats import image_files
from modules.ui.texts import rlhf as words
from modules.util.bucket import aspect_label, bucket_of
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.resolution import parse_resolutions
from modules.util.display import counted
from modules.util.dpo_curation_util import check_dpo_pairs, dpo_concept_pairs, is_dpo_concept_type
from modules.util.enum.ConceptType import ConceptType
from modules.util.errors import DataError, UserError, list_offenders
from modules.util.pairs.dpo_pair_check import PairCheck
from modules.util.pairs.pair_concepts import CONCEPTS_NAME, concepts_here

_VALIDATION = (ConceptType.DPO_CHOSEN_VAL, ConceptType.DPO_REJECTED_VAL)


def concept_pairs(concepts: Sequence[ConceptConfig]) -> list[tuple[str, ConceptConfig, ConceptConfig]]:
    """(``training`` or ``validation``, chosen, rejected) of all enabled pairs of concepts.

    Raises:
        DataError: there are no pairs, or a side is missing.
    """
    made = [("training", a, b) for a, b in dpo_concept_pairs(concepts)]
    if any(concept.enabled and concept.type in _VALIDATION for concept in concepts):
        made += [("validation", a, b) for a, b in dpo_concept_pairs(concepts, validation=True)]
    if not made:
        raise DataError(
            "there are no concepts with chosen and rejected images", "concepts",
            "make pairs with the pair tool, then add its folders on the page Data & concepts",
        )  # fmt: skip
    return made


def check_pairs(concepts: Sequence[ConceptConfig]) -> tuple[bool, list[str]]:
    """Return whether all pairs can be trained on, and the findings for each pair of concepts."""
    good, lines = True, []
    for split, chosen, rejected in concept_pairs(concepts):
        lines.append(
            words.CONCEPTS_OF.format(
                chosen=chosen.name or Path(chosen.path).name,
                rejected=rejected.name or Path(rejected.path).name,
                split=split,
            )
        )
        try:
            found = check_dpo_pairs(chosen.path, rejected.path)
        except DataError as error:
            good = False
            lines.append(f"  \u2716 {error.message}")
            continue
        good = good and found.ok
        lines.extend(_check_lines(found))
    return good, lines


def _check_lines(found: PairCheck) -> list[str]:
    lines = [words.MATCHING.format(pairs=counted(len(found.matched), words.PAIR))]
    for name, fault in words.FAULTS.items():
        offenders = getattr(found, name)
        if offenders:
            lines.append(f"  \u2716 {len(offenders)}: {fault}")
            lines.append(list_offenders(offenders))
    if found.empty_captions:
        lines.append(words.EMPTY_CAPTIONS.format(pairs=counted(len(found.empty_captions), words.PAIR)))
    if found.ok:
        lines.append(words.ALL_WELL)
    return lines


def bucket_report(concepts: Sequence[ConceptConfig], resolution: str, batch_size: int) -> list[str]:
    """The number of pairs per training aspect ratio, and how many are missing to fill the batches."""
    pixels = parse_resolutions(resolution)[0]
    counts: Counter[tuple[int, int]] = Counter()
    names: dict[tuple[int, int], str] = {}
    unreadable = 0
    for split, chosen, _ in concept_pairs(concepts):
        folder = Path(chosen.path)
        if split != "training" or not folder.is_dir():
            continue
        for image in image_files(folder, True):
            try:
                size = image_size(image)
            except DataError:
                unreadable += 1
                continue
            bucket = bucket_of(*size, pixels)
            counts[bucket] += 1
            names[bucket] = aspect_label(*size)
    total = counted(sum(counts.values()), words.TRAINING_PAIR)
    lines = [words.BUCKETS_TOTAL.format(pairs=total, pixels=pixels, batch=batch_size), ""]
    for bucket, count in counts.most_common():
        over = count % batch_size
        batches = words.NOT_FULL.format(over=over, missing=batch_size - over) if over else words.FULL_BATCHES
        pairs, (high, wide) = counted(count, words.PAIR), bucket
        line = words.BUCKET_LINE
        lines.append(line.format(shape=names[bucket], width=wide, height=high, pairs=pairs, batches=batches))
    if unreadable:
        lines.append(words.UNREADABLE.format(images=counted(unreadable, words.IMAGE)))
    return lines


def concepts_of_output(folder: Path) -> list[ConceptConfig]:
    """The concepts of a folder finalised by the pair tool.

    Raises:
        UserError: nothing was finalised there.
    """
    for name in ("chosen", "rejected"):
        if not (folder / name).is_dir():
            raise UserError(
                f"{folder} holds no finished pairs: there is no folder {name!r} in it",
                hint="choose the output folder of the pair tool, after its last step",
            )
    written = folder / CONCEPTS_NAME
    if written.is_file():
        return concepts_here(folder, ConceptConfig.load_all(written))
    made = []
    for kind, side in ((ConceptType.DPO_CHOSEN, "chosen"), (ConceptType.DPO_REJECTED, "rejected")):
        inner = folder / side / "train"
        path = inner if inner.is_dir() else folder / side
        made.append(ConceptConfig(name=f"{folder.name} {side}", path=str(path), type=kind))
    return made


def is_pair_side(concept: ConceptConfig) -> bool:
    """Return whether a concept is one side of pairs, so that its images must not be augmented."""
    return is_dpo_concept_type(concept.type)
