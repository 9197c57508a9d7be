"""Finishes review steps that were interrupted by a kill, before store or review read the folder again.

The journal records a step before it is done. The order of the program's changes distinguishes an interrupted
step from changes made by a person: only states that occur in this order are touched.
"""

from __future__ import annotations

from pathlib import Path

from modules.curation.review.review_journal import ReviewJournal, Step
from modules.curation.review.swapping import finish_swaps
from modules.util.dpo_curation_util import SIDES, entry_of, load_manifest, save_manifest
from modules.util.owned_files import Owned
from modules.util.pairs.dpo_pair_files import (
    TRASH_NAME,
    find_exported_file,
    name_below,
    owned_pairs,
    read_caption,
    write_caption,
)


def finish_steps(output_dir: Path) -> ReviewJournal:
    """Finish interrupted swaps, and an interrupted removal or caption change. Returns the journal of the folder."""
    finish_swaps(output_dir)
    journal = ReviewJournal(output_dir)
    finish_half_step(owned_pairs(output_dir), output_dir, journal.last())
    return journal


def finish_half_step(owned: Owned, output_dir: Path, step: Step | None) -> None:
    """Finish the last step of the journal if it was interrupted. A complete step, or none, is left alone."""
    if step is None:
        return
    if step["do"] == "remove":
        _finish_removal(owned, output_dir, step)
    elif step["do"] == "caption" and isinstance(step.get("text"), str):
        _finish_caption(owned, output_dir, step)


def _finish_removal(owned: Owned, output_dir: Path, step: Step) -> None:
    """Finish a removal: the entry is removed from the manifest first, then the files are moved one by one."""
    moves = [(name, f"{TRASH_NAME}/{kept}") for name, kept in step["files"]]
    left = [(name, kept) for name, kept in moves if not owned.path(kept).exists()]
    if not left or not all(owned.path(name).is_file() for name, _ in left):
        return
    manifest = load_manifest(output_dir)
    others = [entry for entry in manifest["pairs"] if entry["pair_id"] != step["pair_id"]]
    listed = len(others) < len(manifest["pairs"])
    if len(left) == len(moves) and (listed or step.get("entry") is None):
        return  # it never began
    if listed:
        manifest["pairs"] = others
        save_manifest(output_dir, manifest)
    for name, kept in left:
        owned.move(name, kept)


def _finish_caption(owned: Owned, output_dir: Path, step: Step) -> None:
    text, pair_id = step["text"], step["pair_id"]
    images = {side: find_exported_file(output_dir, side, pair_id) for side in SIDES}
    manifest = load_manifest(output_dir)
    entry = entry_of(manifest, pair_id)
    written = [read_caption(image) == text for image in images.values() if image is not None]
    if not written or not written[0]:
        return
    for side, image in images.items():
        if image is not None and read_caption(image) == step["captions"][side]:
            write_caption(owned, name_below(output_dir, image), text)
    if entry is not None and entry["prompt"] == step.get("prompt") != text:
        entry["prompt"] = text
        save_manifest(output_dir, manifest)
