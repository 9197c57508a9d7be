"""What can be said about the pairs of a config before training on them. No Tk here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from modules.curation.intake.image_size import image_size
from modules.ui.state.folder_stats import image_files
from modules.util.bucket import aspect_label, bucket_of
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.resolution import parse_resolutions
from modules.util.dpo_curation_util import check_dpo_pairs, dpo_concept_pairs, is_dpo_concept_type
from modules.util.enum.ConceptType import ConceptType
from modules.util.errors import DataError, UserError, list_offenders
from modules.util.pairs.dpo_pair_check import PairCheck

_VALIDATION = (ConceptType.DPO_CHOSEN_VAL, ConceptType.DPO_REJECTED_VAL)
_FAULTS = {
    "only_chosen": "in the chosen folder only",
    "only_rejected": "in the rejected folder only",
    "shared_stems": "several files with the same name",
    "missing_captions": "no caption on one side or both",
    "differing_captions": "different captions on the two sides",
    "multiline_captions": "a caption of several lines",
    "identical_images": "the same image on both sides",
    "unreadable": "images that cannot be decoded",
}


def concept_pairs(concepts: Sequence[ConceptConfig]) -> list[tuple[str, ConceptConfig, ConceptConfig]]:
    """(``training`` or ``validation``, chosen, rejected) of all enabled pairs of concepts.

    Raises:
        DataError: there are none, or a side is missing.
    """
    made = [("training", a, b) for a, b in dpo_concept_pairs(concepts)]
    if any(concept.enabled and concept.type in _VALIDATION for concept in concepts):
        made += [("validation", a, b) for a, b in dpo_concept_pairs(concepts, validation=True)]
    if not made:
        raise DataError(
            "there are no concepts with chosen and rejected images", "concepts",
            "make pairs with the pair tool, then add its folders on the Data page",
        )  # fmt: skip
    return made


def check_pairs(concepts: Sequence[ConceptConfig]) -> tuple[bool, list[str]]:
    """Whether all pairs can be trained on, and what there is to say about each pair of concepts."""
    good, lines = True, []
    for split, chosen, rejected in concept_pairs(concepts):
        lines.append(
            f"{chosen.name or Path(chosen.path).name} \u2013 {rejected.name or Path(rejected.path).name} ({split})"
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
    lines = [f"  {len(found.matched)} pairs match"]
    for name, words in _FAULTS.items():
        offenders = getattr(found, name)
        if offenders:
            lines.append(f"  \u2716 {len(offenders)}: {words}")
            lines.append(list_offenders(offenders))
    if found.empty_captions:
        lines.append(f"  {len(found.empty_captions)} with an empty caption: trained with the empty prompt")
    if found.ok:
        lines.append("  everything is fine")
    return lines


def bucket_report(concepts: Sequence[ConceptConfig], resolution: str, batch_size: int) -> list[str]:
    """Pairs by the shape they are trained at, and what is missing to full batches."""
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
    lines = [f"{sum(counts.values())} training pairs at resolution {pixels}, {batch_size} in a batch", ""]
    for bucket, count in counts.most_common():
        over = count % batch_size
        words = "full batches"
        if over:
            words = f"{over} left over: add {batch_size - over}, or drop {over}, for full batches"
        lines.append(f"{names[bucket]:>6}   {bucket[1]} \u00d7 {bucket[0]}   {count:>5} pairs   {words}")
    if unreadable:
        lines.append(f"{unreadable} images cannot be read")
    return lines


def concepts_of_output(folder: Path) -> list[ConceptConfig]:
    """The concepts of a folder the pair tool has finished.

    Raises:
        UserError: nothing was finished there.
    """
    for name in ("chosen", "rejected"):
        if not (folder / name).is_dir():
            raise UserError(
                f"{folder} holds no finished pairs: there is no folder {name!r} in it",
                hint="choose the output folder of the pair tool, after its last step",
            )
    written = folder / "concepts.json"
    if written.is_file():
        return ConceptConfig.load_all(written)
    made = []
    for kind, side in ((ConceptType.DPO_CHOSEN, "chosen"), (ConceptType.DPO_REJECTED, "rejected")):
        inner = folder / side / "train"
        path = inner if inner.is_dir() else folder / side
        made.append(ConceptConfig(name=f"{folder.name} {side}", path=str(path), type=kind))
    return made


def is_pair_side(concept: ConceptConfig) -> bool:
    """Whether a concept is one side of pairs, so that nothing may be done to its images."""
    return is_dpo_concept_type(concept.type)
