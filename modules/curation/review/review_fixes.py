"""The one-click fix of every fault that has one."""

from __future__ import annotations

from collections.abc import Iterable

from modules.curation.review.review import Fault, PairReview
from modules.util.dpo_curation_util import FinalizedPair, load_manifest


def fix_faults(review: PairReview, faults: Iterable[Fault]) -> list[Fault]:
    """Apply the fix of each fault; of several faults of one pair, removing it settles all.

    A caption is set to the prompt of the manifest, else to the caption of the chosen side, else of the
    rejected one, folded into one line. A pair without any caption is left for a person.

    Returns:
        The faults that were dealt with.
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
    for entry in load_manifest(review.output_dir)["pairs"]:
        if entry["pair_id"] == pair.pair_id and entry["prompt"].strip():
            return str(entry["prompt"])
    return pair.chosen_caption or pair.rejected_caption or ""
