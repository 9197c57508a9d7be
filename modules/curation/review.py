"""Walking through exported pairs: removing, swapping, re-captioning, finding faults, each with an undo."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from modules.curation.swapping import finish_swaps, swap_sides
from modules.util.bucket import bucket_of
from modules.util.dpo_curation_util import (
    IMAGE_EXTENSIONS,
    SIDES,
    SPLITS,
    FinalizedPair,
    file_sha256,
    find_exported_file,
    load_manifest,
    read_caption,
    save_manifest,
    scan_finalized_pairs,
    write_caption,
)
from modules.util.errors import DataError, UserError

TRASH_NAME = ".trash"


@dataclass(frozen=True)
class Fault:
    """One thing wrong with one pair, and the name of its one-click fix (``None``: a person must look)."""

    pair_id: str
    kind: str
    message: str
    fix: str | None


class PairReview:
    """The finalised pairs of one output folder, train and val together.

    Removed files go to a trash folder inside the output folder until ``empty_trash``, so every operation
    can be undone, without limit.
    """

    def __init__(self, output_dir: str | os.PathLike[str]) -> None:
        self.output_dir = Path(output_dir)
        if not self.output_dir.is_dir():
            raise DataError(f"the folder {self.output_dir} does not exist")
        finish_swaps(self.output_dir)
        self._undo: list[tuple[str, Callable[[], None]]] = []
        self.undone: str | None = None
        """The pair that the last ``undo`` was about."""

    def pairs(self) -> list[FinalizedPair]:
        """All pairs as they lie on the disk now."""
        return scan_finalized_pairs(self.output_dir)

    def find(self, pair_id: str) -> FinalizedPair | None:
        """One pair as it lies on the disk now, without reading the others."""
        for split in SPLITS:
            sides: dict[str, Path] = {}
            for side in SIDES:
                folder = self.output_dir / side / split
                for path in folder.glob(f"{glob.escape(pair_id)}.*"):
                    if path.stem == pair_id and path.suffix.lower() in IMAGE_EXTENSIONS:
                        sides[side] = path
            if sides:
                chosen, rejected = sides.get("chosen"), sides.get("rejected")
                captions = read_caption(chosen), read_caption(rejected)
                return FinalizedPair(pair_id, split, chosen, rejected, *captions)
        return None

    def _pair(self, pair_id: str) -> FinalizedPair:
        pair = self.find(pair_id)
        if pair is None:
            raise UserError(f"there is no pair {pair_id!r} in {self.output_dir}")
        return pair

    # --- operations ---

    def remove(self, pair_id: str) -> None:
        """Take both sides, captions and the manifest entry away."""
        pair = self._pair(pair_id)
        manifest = load_manifest(self.output_dir)
        entry = next((p for p in manifest["pairs"] if p["pair_id"] == pair_id), None)
        trash = self.output_dir / TRASH_NAME
        trash.mkdir(exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{pair_id}.", dir=trash))
        moved: list[tuple[Path, Path]] = []
        if entry is not None:
            save_manifest(
                self.output_dir,
                {**manifest, "pairs": [p for p in manifest["pairs"] if p["pair_id"] != pair_id]},
            )
        for side, image in (("chosen", pair.chosen), ("rejected", pair.rejected)):
            for file in () if image is None else (image, image.with_suffix(".txt")):
                if file.is_file():
                    target = folder / f"{side}.{file.name}"
                    file.replace(target)
                    moved.append((file, target))

        def undo() -> None:
            for file, target in moved:
                target.replace(file)
            if entry is not None:
                now = load_manifest(self.output_dir)
                now["pairs"] = sorted([*now["pairs"], entry], key=lambda p: str(p["pair_id"]))
                save_manifest(self.output_dir, now)

        self._undo.append((pair_id, undo))

    def swap(self, pair_id: str) -> None:
        """Chosen becomes rejected and the other way round."""
        self._swap(pair_id)
        self._undo.append((pair_id, lambda: self._swap(pair_id)))

    def _swap(self, pair_id: str) -> None:
        swap_sides(self.output_dir, self._pair(pair_id))

    def edit_caption(self, pair_id: str, caption: str) -> None:
        """Give both sides the same caption."""
        text = " ".join(caption.split())
        if not text:
            raise UserError("the caption is empty")
        pair = self._pair(pair_id)
        before = [(image, read_caption(image)) for image in (pair.chosen, pair.rejected) if image is not None]
        for image, _ in before:
            write_caption(image, text)
        old = self._set_prompt(pair_id, text)

        def undo() -> None:
            for image, caption_before in before:
                if caption_before is None:
                    image.with_suffix(".txt").unlink(missing_ok=True)
                else:
                    write_caption(image, caption_before)
            if old is not None:
                self._set_prompt(pair_id, old)

        self._undo.append((pair_id, undo))

    def _set_prompt(self, pair_id: str, prompt: str) -> str | None:
        manifest = load_manifest(self.output_dir)
        for entry in manifest["pairs"]:
            if entry["pair_id"] == pair_id:
                old = str(entry["prompt"])
                entry["prompt"] = prompt
                save_manifest(self.output_dir, manifest)
                return old
        return None

    def undo(self) -> bool:
        """Take the last operation back; ``False`` when there is none."""
        if not self._undo:
            return False
        self.undone, take_back = self._undo.pop()
        take_back()
        return True

    def empty_trash(self) -> None:
        """Delete what was removed for good; operations before this cannot be undone any more."""
        self._undo.clear()
        shutil.rmtree(self.output_dir / TRASH_NAME, ignore_errors=True)

    # --- checks ---

    def faults(self, resolution: int, size_of: Callable[[Path], tuple[int, int]]) -> list[Fault]:
        """Everything wrong, pair by pair.

        Args:
            resolution: the training resolution whose buckets are compared, in pixels.
            size_of: pixel size (width, height) of an image file.
        """
        found: list[Fault] = []
        for pair in self.pairs():
            found += self.faults_in(pair, resolution, size_of)
        return found + self.orphans()

    def orphans(self) -> list[Fault]:
        """Sides that the manifest names and the folder lacks."""
        return [
            Fault(entry["pair_id"], "orphan", f"the {side} image is gone from the disk", "remove")
            for entry in load_manifest(self.output_dir)["pairs"]
            for side in SIDES
            if find_exported_file(self.output_dir, side, entry["pair_id"]) is None
        ]

    def faults_in(
        self, pair: FinalizedPair, resolution: int, size_of: Callable[[Path], tuple[int, int]]
    ) -> list[Fault]:
        """What is wrong between the two sides of one pair."""
        name = pair.pair_id
        if pair.chosen is None or pair.rejected is None:
            side = "chosen" if pair.chosen is None else "rejected"
            return [Fault(name, "half", f"there is no {side} image", "remove")]
        found = []
        captions = (pair.chosen_caption, pair.rejected_caption)
        if None in captions or "" in captions:
            found.append(Fault(name, "caption_missing", "a caption is missing or empty", "edit_caption"))
        elif captions[0] != captions[1]:
            found.append(Fault(name, "captions_differ", "the two captions differ", "edit_caption"))
        if any(text and len(text.splitlines()) > 1 for text in captions):
            found.append(Fault(name, "caption_lines", "a caption has several lines", "edit_caption"))
        if file_sha256(pair.chosen) == file_sha256(pair.rejected):
            found.append(Fault(name, "identical", "both sides are the same image", "remove"))
        buckets = [bucket_of(*size_of(image), resolution) for image in (pair.chosen, pair.rejected)]
        if buckets[0] != buckets[1]:
            text = f"the sides are cropped to different shapes: {buckets[0]} and {buckets[1]}"
            found.append(Fault(name, "buckets", text, "remove"))
        return found


def pairs_per_bucket(
    pairs: list[FinalizedPair], resolution: int, batch_size: int, size_of: Callable[[Path], tuple[int, int]]
) -> dict[tuple[int, int], tuple[int, int]]:
    """Bucket analysis: (height, width) -> (pairs, pairs missing to the next full batch)."""
    counts: dict[tuple[int, int], int] = {}
    for pair in pairs:
        if pair.chosen is not None:
            bucket = bucket_of(*size_of(pair.chosen), resolution)
            counts[bucket] = counts.get(bucket, 0) + 1
    return {bucket: (n, -n % batch_size) for bucket, n in sorted(counts.items())}
