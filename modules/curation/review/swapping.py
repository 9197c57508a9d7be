"""Swaps the sides of a finalised pair without loss if it crashes in between.

During a swap, the chosen image has a hidden name. If one is found later, the swap is finished.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path, PurePosixPath

from modules.util.dpo_curation_util import (
    IMAGE_EXTENSIONS,
    SIDES,
    FinalizedPair,
    entry_of,
    file_sha256,
    find_exported_file,
    load_manifest,
    save_manifest,
    write_confidences,
)
from modules.util.errors import DataError
from modules.util.owned_files import Owned
from modules.util.pairs.dpo_pair_files import PLACES, name_below, owned_pairs

log = logging.getLogger(__name__)

_WAITING = ".swap"


def swap_sides(output_dir: Path, pair: FinalizedPair) -> None:
    """Swap chosen and rejected, in the files and in the manifest.

    Raises:
        DataError: the pair has lost a side.
    """
    if pair.chosen is None or pair.rejected is None:
        raise DataError(f"pair {pair.pair_id} has lost one side and cannot be swapped")
    owned = owned_pairs(output_dir)
    chosen, rejected = (PurePosixPath(name_below(output_dir, side)) for side in (pair.chosen, pair.rejected))
    waiting = chosen.with_name(f".{chosen.name}{_WAITING}")
    to_chosen, to_rejected = chosen.with_name(rejected.name), rejected.with_name(chosen.name)
    owned.move(chosen, waiting)
    owned.move(rejected, to_chosen)
    _swap_entry(output_dir, pair.pair_id, to_chosen.as_posix(), to_rejected.as_posix())
    owned.move(waiting, to_rejected)


def finish_swaps(output_dir: Path) -> None:
    """Finish every swap interrupted by a crash, or revert one that had hardly begun.

    Files that only resemble a swap are skipped.
    """
    owned = owned_pairs(output_dir)
    for split in PLACES:
        for waiting in sorted((output_dir / "chosen" / split).glob(f".*{_WAITING}")):
            image = PurePosixPath(waiting.name[1 : -len(_WAITING)] or ".")
            if image.suffix.lower() not in IMAGE_EXTENSIONS or waiting.is_symlink() or not waiting.is_file():
                continue
            _finish_swap(owned, output_dir, name_below(output_dir, waiting), image)


def _finish_swap(owned: Owned, output_dir: Path, waiting: str, image: PurePosixPath) -> None:
    place = PurePosixPath(waiting).parent
    chosen = find_exported_file(output_dir, "chosen", image.stem)
    if chosen is None:
        owned.move(waiting, place / image.name)
        return
    to_rejected = ("rejected" / place.relative_to("chosen") / image.name).as_posix()
    if os.path.lexists(output_dir / to_rejected):
        log.warning("%s is not left over from a swap, because %s exists too", waiting, to_rejected)
        return
    if not _is_swapped(output_dir, image.stem, chosen):
        _swap_entry(output_dir, image.stem, name_below(output_dir, chosen), to_rejected)
    owned.move(waiting, to_rejected)


def _is_swapped(output_dir: Path, pair_id: str, chosen: Path) -> bool:
    """Return whether the manifest already reflects the swap, by the hash of the current chosen image."""
    entry = entry_of(load_manifest(output_dir), pair_id)
    return entry is None or entry.get("hashes", {}).get("chosen") == file_sha256(chosen)


def _swap_entry(output_dir: Path, pair_id: str, chosen: str, rejected: str) -> None:
    manifest = load_manifest(output_dir)
    entry = entry_of(manifest, pair_id)
    if entry is None:
        return
    entry["chosen_file"], entry["rejected_file"] = chosen, rejected
    for key in ("sources", "hashes"):
        values = entry.get(key, {})
        entry[key] = {a: values[b] for a, b in zip(SIDES, reversed(SIDES), strict=True) if b in values}
    if entry.pop("certainty", None) is not None:
        # the ranking disagreed; written first, because steps after the manifest are not repeated
        write_confidences(owned_pairs(output_dir), manifest)
    save_manifest(output_dir, manifest)
