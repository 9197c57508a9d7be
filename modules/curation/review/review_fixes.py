"""The automatic fixes of faults."""

from __future__ import annotations

from collections.abc import Iterable

from modules.curation.review.review import Fault, PairReview
from modules.util.dpo_curation_util import FinalizedPair, entry_of, load_manifest


def fix_faults(review: PairReview, faults: Iterable[Fault]) -> list[Fault]:
    """Fix each fault. If a fault of a pair requires removing it, that settles its other faults too.

    A caption is set to the prompt in the manifest, else to the caption of the chosen side, else of the
    rejected one, joined into one line. A pair without any caption is left to the person.

    Returns:
        The fixed faults.
    """
    todo = list(faults)
    gone = {fault.pair_id for fault in todo if fault.fix == "remove"}
    fixed: list[Fault] = []
    handled: set[str] = set()
    for fault in todo:
        if fault.fix is None:
            continue
        if fault.pair_id not in handled:
            if fault.pair_id in gone:
                review.remove(fault.pair_id)
            elif not _set_caption(review, fault.pair_id):
                continue
            handled.add(fault.pair_id)
        fixed.append(fault)
    return fixed


def _set_caption(review: PairReview, pair_id: str) -> bool:
    pair = review.find(pair_id)
    caption = "" if pair is None else _known_caption(review, pair)
    if not caption.strip():
        return False
    review.edit_caption(pair_id, caption)
    return True


def _known_caption(review: PairReview, pair: FinalizedPair) -> str:
    entry = entry_of(load_manifest(review.output_dir), pair.pair_id)
    if entry is not None and entry["prompt"].strip():
        return str(entry["prompt"])
    return pair.chosen_caption or pair.rejected_caption or ""
