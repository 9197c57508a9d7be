"""Review of exported pairs: removing, swapping, editing captions, finding faults, each with an undo."""

from __future__ import annotations

import glob
import os
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from modules.curation.review.half_steps import finish_steps
from modules.curation.review.review_journal import Step, TrashSize
from modules.curation.review.swapping import swap_sides
from modules.util.bucket import bucket_of
from modules.util.dpo_curation_util import (
    IMAGE_EXTENSIONS,
    MANIFEST_NAME,
    SIDES,
    SPLITS,
    UNCONDITIONAL,
    FinalizedPair,
    caption_of,
    entry_of,
    file_sha256,
    find_exported_file,
    load_manifest,
    read_caption,
    save_manifest,
    write_confidences,
)
from modules.util.errors import DataError, UserError
from modules.util.pairs.decoding import UndecodableImage, undecodable
from modules.util.pairs.dpo_pair_files import (
    PLACES,
    SAFE_PAIR_ID,
    SOURCE_FOLDER,
    TRASH_NAME,
    caption_name,
    name_below,
    owned_pairs,
    scan_pairs,
    write_caption,
)
from modules.util.pairs.pair_sources import find_sources, missing_sources


@dataclass(frozen=True)
class Fault:
    """One fault of one pair, and the name of its one-click fix (``None``: a person must decide)."""

    pair_id: str
    kind: str
    message: str
    fix: str | None


_Stamp = tuple[int, int, int, int]


def _stamp(path: Path) -> _Stamp:
    info = path.stat()
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size


class PairReview:
    """The pairs of one output folder: in train, in val, and not finalised yet.

    Pairs that are not finalised count only if they are in the manifest; other images next to them are not the
    program's.

    Removed files go to a trash folder inside the output folder until ``empty_trash``. Every step is recorded
    there, so that it can be undone, without limit and also by a later process.
    """

    def __init__(self, output_dir: str | os.PathLike[str]) -> None:
        self.output_dir = Path(output_dir)
        if not self.output_dir.is_dir():
            raise DataError(f"the folder {self.output_dir} does not exist")
        self._owned = owned_pairs(self.output_dir)
        self._journal = finish_steps(self.output_dir)
        self._prompts: tuple[tuple[int, int, int], dict[str, str]] = ((0, 0, 0), {})
        self._decoded: dict[_Stamp, UndecodableImage | None] = {}
        self.undone: str | None = None
        """The pair that the last ``undo`` concerned."""

    def pairs(self) -> list[FinalizedPair]:
        """All pairs on disk."""
        listed = self._manifest_prompts()
        return [pair for pair in scan_pairs(self.output_dir) if pair.split or pair.pair_id in listed]

    def names(self) -> set[str]:
        """Names of all pairs with any file or a manifest entry."""
        return {*self._manifest_prompts(), *(pair.pair_id for pair in self.pairs())}

    def find(self, pair_id: str) -> FinalizedPair | None:
        """Read one pair from disk, without reading the others."""
        for split in PLACES if pair_id in self._manifest_prompts() else SPLITS:
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
        """Remove both sides, captions, sources and the manifest entry, or whatever exists of them."""
        pair, manifest = self.find(pair_id), load_manifest(self.output_dir)
        entry = entry_of(manifest, pair_id)
        if pair is None and entry is None:
            raise UserError(f"there is no pair {pair_id!r} in {self.output_dir}")
        label = pair_id if SAFE_PAIR_ID.fullmatch(pair_id) else "pair"
        place = f"{TRASH_NAME}/{label}.{secrets.token_hex(4)}"
        moves: list[tuple[str, str]] = []
        for side in SIDES:
            image = getattr(pair, side) if pair else find_exported_file(self.output_dir, side, pair_id)
            files = [] if image is None else [image, image.with_suffix(".txt")]
            moves += [
                (name_below(self.output_dir, file), f"{place}/{side}.{file.name}")
                for file in files
                if file.is_file()
            ]
        moves += [
            (name_below(self.output_dir, file), f"{place}/{SOURCE_FOLDER}.{file.name}")
            for file in find_sources(self.output_dir, pair_id)
        ]
        for name in (name for move in moves for name in move):
            self._owned.path(name)
        in_trash = [(name, kept.removeprefix(f"{TRASH_NAME}/")) for name, kept in moves]
        self._journal.add({"do": "remove", "pair_id": pair_id, "entry": entry, "files": in_trash})
        if entry is not None:
            manifest["pairs"].remove(entry)
            save_manifest(self.output_dir, manifest)
        for name, kept in moves:
            self._owned.move(name, kept)

    def _bring_back(self, step: Step) -> None:
        manifest = load_manifest(self.output_dir)
        entry, pair_id = step["entry"], step["pair_id"]
        for name, in_trash in step["files"]:
            target = name
            if entry is not None:
                target = self._with_its_prompt(manifest, entry["prompt"], name)
                for side in SIDES:
                    if entry[f"{side}_file"] == name:
                        entry[f"{side}_file"] = target
            if self._owned.path(f"{TRASH_NAME}/{in_trash}").is_file():
                if self._owned.path(target).exists():
                    raise UserError(f"{self.output_dir / target} exists again", hint="rename it, then undo")
                self._owned.move(f"{TRASH_NAME}/{in_trash}", target)
        if entry is not None and entry_of(manifest, pair_id) is None:
            manifest["pairs"] = sorted([*manifest["pairs"], entry], key=lambda p: str(p["pair_id"]))
            save_manifest(self.output_dir, manifest)
        if entry is not None:  # finalising may have written the certainties without this pair
            self._tell_certainty(manifest, entry)

    def _with_its_prompt(self, manifest: dict[str, Any], prompt: str, name: str) -> str:
        """The place of a file, taking into account that finalising may have moved its prompt to the other split."""
        path = PurePosixPath(name)
        if path.parent.name in SPLITS:
            for other in manifest["pairs"]:
                split = PurePosixPath(other["chosen_file"]).parent.name
                if other["prompt"] == prompt and split in SPLITS:
                    return (path.parent.parent / split / path.name).as_posix()
        return name

    def swap(self, pair_id: str) -> None:
        """Swap chosen and rejected."""
        pair = self._pair(pair_id)
        if pair.chosen is None or pair.rejected is None:
            raise DataError(f"pair {pair_id} has lost one side and cannot be swapped")
        entry = entry_of(load_manifest(self.output_dir), pair_id) or {}
        facts = {"chosen": file_sha256(pair.rejected), "certainty": entry.get("certainty")}
        self._journal.add({"do": "swap", "pair_id": pair_id, **facts})
        swap_sides(self.output_dir, pair)

    def _swap_back(self, step: Step) -> None:
        """Swap the sides again, unless an interrupted undo has done so. A person may have edited the images."""
        pair = self._pair(step["pair_id"])
        digests = [None if image is None else file_sha256(image) for image in (pair.chosen, pair.rejected)]
        if digests[0] == step["chosen"] or digests[1] != step["chosen"]:
            swap_sides(self.output_dir, pair)
        manifest = load_manifest(self.output_dir)
        entry = entry_of(manifest, step["pair_id"])
        if entry is not None and step.get("certainty") is not None:  # the swap dropped it
            entry["certainty"] = step["certainty"]
            save_manifest(self.output_dir, manifest)
            self._tell_certainty(manifest, entry)

    def _tell_certainty(self, manifest: dict[str, Any], entry: dict[str, Any]) -> None:
        """Write the certainties for training again, if ``entry`` is a finalised pair that has one."""
        if "certainty" in entry and PurePosixPath(entry["chosen_file"]).parent.name in SPLITS:
            write_confidences(self._owned, manifest)

    def edit_caption(self, pair_id: str, caption: str) -> None:
        """Give both sides the same caption; ``UNCONDITIONAL`` means an empty one."""
        text = " ".join(caption.split())
        if not text:
            raise UserError("the caption is empty", hint=f"to train the empty prompt, write {UNCONDITIONAL}")
        pair = self._pair(pair_id)
        before = {"chosen": pair.chosen_caption, "rejected": pair.rejected_caption}
        prompts = self._manifest_prompts()
        self._journal.add(
            {
                "do": "caption",
                "pair_id": pair_id,
                "captions": before,
                "prompt": prompts.get(pair_id),
                "text": text,
            }
        )
        for image in (pair.chosen, pair.rejected):
            if image is not None:
                write_caption(self._owned, name_below(self.output_dir, image), text)
        self._set_prompt(pair_id, text)

    def _caption_back(self, step: Step) -> None:
        """Restore captions in the reverse order of ``edit_caption``, so that an interrupted undo leaves a
        known state. A caption that a person has edited since stays, and nothing is undone.
        """
        pair = self._pair(step["pair_id"])
        self._check_captions(step, pair)
        if step["prompt"] is not None:
            self._set_prompt(step["pair_id"], step["prompt"])
        for side in reversed(SIDES):
            image, caption = getattr(pair, side), step["captions"][side]
            if image is None:
                continue
            name = caption_name(name_below(self.output_dir, image))
            if caption is None:
                self._owned.remove(name)
            else:
                with self._owned.write(name) as temporary:
                    temporary.write_bytes(f"{caption}\n".encode() if caption else b"")

    def _check_captions(self, step: Step, pair: FinalizedPair) -> None:
        now = {"chosen": pair.chosen_caption, "rejected": pair.rejected_caption}
        for side in SIDES if "text" in step else ():
            if now[side] not in (None, step["captions"][side], caption_of(step["text"])):
                caption = getattr(pair, side).with_suffix(".txt")
                raise UserError(
                    f"{caption} was changed since",
                    hint="move this file elsewhere, then undo again; nothing was changed",
                )

    def _set_prompt(self, pair_id: str, prompt: str) -> None:
        manifest = load_manifest(self.output_dir)
        entry = entry_of(manifest, pair_id)
        if entry is not None:
            entry["prompt"] = prompt
            save_manifest(self.output_dir, manifest)

    def undo(self) -> bool:
        """Undo the last operation, of this process or an earlier one. Return ``False`` if there is none.

        Raises:
            DataError: its record is damaged. UserError: the original place is taken.
        """
        take_back = {"remove": self._bring_back, "swap": self._swap_back, "caption": self._caption_back}
        step = self._journal.last()
        while step is not None and step["do"] in ("swap", "caption") and not self._is_there(step):
            self._journal.drop()  # picking has undone the whole pair since
            step = self._journal.last()
        if step is None:
            return False
        try:
            take_back[step["do"]](step)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"the last step in {self._journal.trash} cannot be read: {error!r}", hint="empty the trash"
            ) from error
        self.undone = str(step["pair_id"])
        self._journal.drop()
        return True

    def _is_there(self, step: Step) -> bool:
        return self.find(str(step.get("pair_id"))) is not None

    def trash(self) -> TrashSize:
        """Size of the removed pairs."""
        return self._journal.size()

    def empty_trash(self) -> TrashSize:
        """Delete removed pairs for good. Earlier operations can no longer be undone."""
        return self._journal.empty()

    # --- checks ---

    def faults(self, resolution: int, size_of: Callable[[Path], tuple[int, int]]) -> list[Fault]:
        """All faults, pair by pair.

        Args:
            resolution: the training resolution whose buckets are compared, in pixels.
            size_of: pixel size (width, height) of an image file.
        """
        found: list[Fault] = []
        pairs = self.pairs()
        self._decode([image for pair in pairs for image in (pair.chosen, pair.rejected) if image is not None])
        for pair in pairs:
            found += self.faults_in(pair, resolution, size_of)
        return found + self.orphans()

    def orphans(self) -> list[Fault]:
        """Sides and sources that are in the manifest but not in the folder."""
        return [
            Fault(entry["pair_id"], "orphan", f"the {what} image is missing from the disk", "remove")
            for entry in load_manifest(self.output_dir)["pairs"]
            for what in (
                *(
                    side
                    for side in SIDES
                    if find_exported_file(self.output_dir, side, entry["pair_id"]) is None
                ),
                *(SOURCE_FOLDER for _ in missing_sources(self.output_dir, entry)),
            )
        ]

    def faults_in(
        self, pair: FinalizedPair, resolution: int, size_of: Callable[[Path], tuple[int, int]]
    ) -> list[Fault]:
        """Faults between the two sides of one pair."""
        name = pair.pair_id
        if pair.chosen is None or pair.rejected is None:
            side = "chosen" if pair.chosen is None else "rejected"
            return [Fault(name, "half", f"there is no {side} image", "remove")]
        found = []
        captions = (pair.chosen_caption, pair.rejected_caption)
        if None in captions or ("" in captions and not self._without_prompt(name)):
            found.append(Fault(name, "caption_missing", "a caption is missing or empty", "edit_caption"))
        elif captions[0] != captions[1]:
            found.append(Fault(name, "captions_differ", "the two captions differ", "edit_caption"))
        if any(text and len(text.splitlines()) > 1 for text in captions):
            found.append(Fault(name, "caption_lines", "a caption has several lines", "edit_caption"))
        if file_sha256(pair.chosen) == file_sha256(pair.rejected):
            found.append(Fault(name, "identical", "both sides are the same image", "remove"))
        sources = find_sources(self.output_dir, name)
        if any(file_sha256(pair.chosen) == file_sha256(source) for source in sources):
            found.append(Fault(name, "not_edited", "the chosen image is the source itself", "remove"))
        images = [pair.chosen, pair.rejected, *sources]
        broken = [fault for fault in self._decode(images) if fault is not None]
        if broken:
            return [*found, *(Fault(name, "unreadable", fault.message, "remove") for fault in broken)]
        buckets = [bucket_of(*size_of(image), resolution) for image in (pair.chosen, pair.rejected)]
        if buckets[0] != buckets[1]:
            text = f"the sides are cropped to different shapes: {buckets[0]} and {buckets[1]}"
            found.append(Fault(name, "buckets", text, "remove"))
        return found

    def _decode(self, images: list[Path]) -> list[UndecodableImage | None]:
        """Decoding faults of each image. An unchanged image is decoded only once."""
        stamps = [_stamp(image) for image in images]
        new = [i for i, stamp in enumerate(stamps) if stamp not in self._decoded]
        for i, fault in zip(new, undecodable([images[i] for i in new]), strict=True):
            self._decoded[stamps[i]] = fault
        return [self._decoded[stamp] for stamp in stamps]

    def _without_prompt(self, pair_id: str) -> bool:
        """Return whether this pair should have an empty caption."""
        return caption_of(self._manifest_prompts().get(pair_id, "?")) == ""

    def _manifest_prompts(self) -> dict[str, str]:
        """Prompts by pair, reread only when the manifest has changed."""
        try:
            info = (self.output_dir / MANIFEST_NAME).stat()
        except FileNotFoundError:
            return {}
        stamp = (info.st_ino, info.st_mtime_ns, info.st_size)
        if self._prompts[0] != stamp:
            entries = load_manifest(self.output_dir)["pairs"]
            self._prompts = (stamp, {entry["pair_id"]: entry["prompt"] for entry in entries})
        return self._prompts[1]


def pairs_per_bucket(
    pairs: list[FinalizedPair], resolution: int, batch_size: int, size_of: Callable[[Path], tuple[int, int]]
) -> dict[tuple[int, int], tuple[int, int]]:
    """Bucket analysis: (height, width) -> (pairs, pairs missing to fill the last batch)."""
    counts = Counter(bucket_of(*size_of(pair.chosen), resolution) for pair in pairs if pair.chosen is not None)
    return {bucket: (n, -n % batch_size) for bucket, n in sorted(counts.items())}
