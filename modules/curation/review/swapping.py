"""Exchanging the sides of a finalised pair, so that a crash in between costs nothing.

While a swap is under way the chosen image waits under a hidden name; finding one later means finishing it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modules.util.dpo_curation_util import (
    SIDES,
    SPLITS,
    FinalizedPair,
    file_sha256,
    find_exported_file,
    load_manifest,
    save_manifest,
)
from modules.util.errors import DataError

_WAITING = ".swap"


def swap_sides(output_dir: Path, pair: FinalizedPair) -> None:
    """Chosen becomes rejected and the other way round, in the files and in the manifest.

    Raises:
        DataError: the pair has lost a side.
    """
    if pair.chosen is None or pair.rejected is None:
        raise DataError(f"pair {pair.pair_id} has lost one side and cannot be swapped")
    waiting = pair.chosen.with_name(f".{pair.chosen.name}{_WAITING}")
    to_chosen = pair.chosen.with_name(pair.rejected.name)
    to_rejected = pair.rejected.with_name(pair.chosen.name)
    pair.chosen.replace(waiting)
    pair.rejected.replace(to_chosen)
    _swap_entry(output_dir, pair.pair_id, to_chosen, to_rejected)
    waiting.replace(to_rejected)


def finish_swaps(output_dir: Path) -> None:
    """Finish every swap a crash has left half done, or take it back where it had hardly begun."""
    for split in SPLITS:
        for waiting in sorted((output_dir / "chosen" / split).glob(f".*{_WAITING}")):
            name = waiting.name[1 : -len(_WAITING)]
            pair_id = Path(name).stem
            chosen = find_exported_file(output_dir, "chosen", pair_id)
            if chosen is None:
                waiting.replace(waiting.with_name(name))
                continue
            to_rejected = output_dir / "rejected" / split / name
            if not _is_swapped(output_dir, pair_id, chosen):
                _swap_entry(output_dir, pair_id, chosen, to_rejected)
            waiting.replace(to_rejected)


def _entry_of(manifest: dict[str, Any], pair_id: str) -> dict[str, Any] | None:
    return next((entry for entry in manifest["pairs"] if entry["pair_id"] == pair_id), None)


def _is_swapped(output_dir: Path, pair_id: str, chosen: Path) -> bool:
    """Whether the manifest knows of the swap already, by the hash of what is the chosen image now."""
    entry = _entry_of(load_manifest(output_dir), pair_id)
    return entry is None or entry.get("hashes", {}).get("chosen") == file_sha256(chosen)


def _swap_entry(output_dir: Path, pair_id: str, chosen: Path, rejected: Path) -> None:
    manifest = load_manifest(output_dir)
    entry = _entry_of(manifest, pair_id)
    if entry is None:
        return
    entry["chosen_file"] = chosen.relative_to(output_dir).as_posix()
    entry["rejected_file"] = rejected.relative_to(output_dir).as_posix()
    for key in ("sources", "hashes"):
        values = entry.get(key, {})
        entry[key] = {a: values[b] for a, b in zip(SIDES, reversed(SIDES), strict=True) if b in values}
    save_manifest(output_dir, manifest)
