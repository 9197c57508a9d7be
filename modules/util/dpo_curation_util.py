"""Chosen/rejected pairs as files: exporting, finalising, finding, checking and removing them.

An output folder looks like this::

    manifest.json                               {"pairs": [{pair_id, prompt, aspectratio, chosen_file, ...}]}
    chosen/pair_0000.png   chosen/pair_0000.txt       while picking
    rejected/pair_0000.jpg rejected/pair_0000.txt
    source/pair_0000.png                              of edits: the image that both sides were made from
    chosen/train/...  chosen/val/...  rejected/...    after finalising (files are moved, never copied twice)
    concepts.json                                     the four DPO concepts, ready for training

Images are copied byte for byte under their own extension. Every file appears under its final name complete
or not at all. Names read back from a manifest never leave the output folder.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from modules.util.display import counted
from modules.util.enum.ConceptType import ConceptType
from modules.util.errors import DataError, UserError, refused_as
from modules.util.image_metadata.normalise import UNCONDITIONAL, normalise_prompt
from modules.util.jsonio import parse_json, read_bytes, write_json
from modules.util.owned_files import Owned, fault_of_path, shown
from modules.util.pairs.confidence import is_certainty, write_confidence
from modules.util.pairs.decoding import check_decodes
from modules.util.pairs.dpo_pair_check import check_dpo_pairs
from modules.util.pairs.dpo_pair_files import (
    IMAGE_EXTENSIONS,
    SAFE_PAIR_ID,
    SIDES,
    SPLITS,
    FinalizedPair,
    caption_name,
    caption_of,
    copy_image,
    copy_into,
    dpo_pair_key,
    file_sha256,
    find_exported_file,
    fix_multiline_captions,
    locate_pair_file,
    name_below,
    name_is_taken,
    owned_pairs,
    pair_images,
    read_caption,
    scan_finalized_pairs,
    unlink_with_caption,
    write_caption,
)
from modules.util.pairs.foreign_manifest import adopt_entry, shape_name
from modules.util.pairs.pair_concepts import CONCEPTS_NAME, DPO_TYPES, write_concepts
from modules.util.pairs.pair_sources import (
    KEY,
    are_edits,
    check_source_entries,
    copy_sources,
    find_sources,
    missing_sources,
    remove_sources,
    source_entries,
)
from modules.util.pairs.Preferences import Preferences
from modules.util.pairs.source_files import SourceImage
from modules.util.rng import digest64

__all__ = [
    "CONCEPTS_NAME",
    "IMAGE_EXTENSIONS",
    "MANIFEST_NAME",
    "SIDES",
    "SPLITS",
    "UNCONDITIONAL",
    "FinalizedPair",
    "caption_of",
    "check_dpo_pairs",
    "check_manifest_pair",
    "copy_image",
    "copy_pair",
    "dpo_concept_pairs",
    "dpo_pair_key",
    "entry_of",
    "export_curated_pairs",
    "export_single_pair",
    "file_sha256",
    "finalize_export",
    "find_exported_file",
    "find_orphaned_pairs",
    "fix_multiline_captions",
    "has_existing_exports",
    "is_dpo_concept_type",
    "load_manifest",
    "make_pair",
    "manifest_pair_counts",
    "read_caption",
    "remove_finalized_pair",
    "remove_pair",
    "save_manifest",
    "scan_finalized_pairs",
    "split_prompts",
    "unconditional_pairs",
    "unconditional_warning",
    "unlink_with_caption",
]

log = logging.getLogger(__name__)

MANIFEST_NAME = "manifest.json"
_PAIR_ID = re.compile(r"pair_(\d{4,9})")

Manifest = dict[str, Any]
Pair = dict[str, Any]


def is_dpo_concept_type(concept_type: ConceptType | str) -> bool:
    """Return whether a concept is one side of preference pairs."""
    return str(getattr(concept_type, "value", concept_type)) in {str(t.value) for t in DPO_TYPES.values()}


def dpo_concept_pairs(concepts: Iterable[Any], validation: bool = False) -> list[tuple[Any, Any]]:
    """Pair the enabled chosen and rejected concepts in list order.

    Args:
        concepts: objects or dicts with ``type`` and ``enabled``.
        validation: take the ``*_VAL`` types instead of the training ones.

    Raises:
        DataError: one side is empty, or the counts differ.
    """
    split = "val" if validation else "train"
    sides = {side: [c for c in concepts if _concept_is(c, DPO_TYPES[side, split])] for side in SIDES}
    chosen, rejected = sides["chosen"], sides["rejected"]
    if len(chosen) == len(rejected):
        return list(zip(chosen, rejected, strict=True))
    names = " and ".join(str(DPO_TYPES[side, split].value) for side in SIDES)
    raise DataError(
        f"{len(chosen)} chosen and {len(rejected)} rejected concepts are enabled ({names})",
        field="concepts",
        hint="every chosen concept needs its rejected concept, in the same order",
    )


def _concept_is(concept: Any, wanted: ConceptType) -> bool:
    get = (
        concept.get
        if isinstance(concept, Mapping)
        else lambda name, default=None: getattr(concept, name, default)
    )
    kind = get("type", None)
    return bool(get("enabled", True)) and str(getattr(kind, "value", kind)) == str(wanted.value)


class BrokenManifest(UserError):
    """The file named like the manifest is not a manifest (any more)."""


def load_manifest(output_dir: str | os.PathLike[str]) -> Manifest:
    """Read ``manifest.json``. An output folder without one gives an empty manifest.

    Entries of OneTrainer's pair tool are converted.

    Raises:
        BrokenManifest: the file is not a manifest.
        UserError: it is unreadable, or one of its names leads out of the folder.
    """
    path = Path(output_dir) / MANIFEST_NAME
    if not path.exists():
        return {"pairs": []}
    text = read_bytes(path, "pair manifest")
    try:
        data = parse_json(text, f"pair manifest {shown(path)}")
    except UserError as error:
        raise BrokenManifest(error.message, hint=error.hint) from error
    if not isinstance(data, dict) or not isinstance(data.get("pairs"), list):
        raise BrokenManifest(f"{path} is not a pair manifest", hint='it must be {"pairs": [...]}')
    data["pairs"] = [adopt_entry(pair) for pair in data["pairs"]]
    seen: set[str] = set()
    for index, pair in enumerate(data["pairs"]):
        check_manifest_pair(pair, f"{path}: pairs[{index}]")
        if pair["pair_id"] in seen:
            raise UserError(f"{path}: two pairs are called {pair['pair_id']!r}")
        seen.add(pair["pair_id"])
    return data


def check_manifest_pair(pair: Any, where: str) -> None:
    """Check an entry of this folder from a manifest, the store or a journal.

    Raises:
        UserError: it is invalid, or one of its names leads out of its side of the folder; ``where`` names it.
    """
    if not isinstance(pair, dict):
        raise UserError(f"{where} is not an object")
    for key in ("pair_id", "prompt", "chosen_file", "rejected_file"):
        if not isinstance(pair.get(key), str):
            raise UserError(f"{where}.{key} is missing or not text")
    if not SAFE_PAIR_ID.fullmatch(pair["pair_id"]):
        raise UserError(f"{where}.pair_id {shown(pair['pair_id'])!r} is not a plain name")
    for side in SIDES:
        name = pair[f"{side}_file"].replace("\\", "/")
        head, *parts = name.split("/")
        if head != side or not parts or {"", ".", ".."} & set(parts) or ":" in name or fault_of_path(name):
            raise UserError(f"{where}.{side}_file {shown(name)!r} does not stay in the folder {side!r}")
        if PurePosixPath(name).suffix.lower() not in IMAGE_EXTENSIONS:
            raise UserError(f"{where}.{side}_file {shown(name)!r} is not the name of an image")
    for key in ("sources", "hashes"):
        if not isinstance(pair.get(key, {}), dict):
            raise UserError(f"{where}.{key} is not an object")
    check_source_entries(pair, where)
    if "certainty" in pair and not is_certainty(pair["certainty"]):
        raise UserError(f"{where}.certainty is not a number from 0.5 to 1")


def save_manifest(output_dir: str | os.PathLike[str], manifest: Manifest) -> None:
    """Write ``manifest.json`` atomically."""
    write_json(Path(output_dir) / MANIFEST_NAME, manifest)


def manifest_pair_counts(manifest: Manifest) -> dict[tuple[str, str], int]:
    """Number of pairs in each (normalised prompt, aspect bucket) group."""
    return dict(
        Counter(
            (normalise_prompt(pair["prompt"]), shape_name(str(pair.get("aspectratio", ""))))
            for pair in manifest["pairs"]
        )
    )


def unconditional_pairs(manifest: Manifest) -> int:
    """Number of pairs whose images were made without a prompt."""
    return sum(pair["prompt"] == UNCONDITIONAL for pair in manifest["pairs"])


def unconditional_warning(count: int) -> str | None:
    """A warning about ``count`` such pairs; ``None`` if there are none."""
    if not count:
        return None
    have = "pair has" if count == 1 else "pairs have"
    return f"{count} {have} no prompt: the captions are empty, and training uses the empty prompt for them"


def entry_of(manifest: Manifest, pair_id: str) -> Pair | None:
    """The entry of a pair; ``None`` if the manifest has none."""
    return next((pair for pair in manifest["pairs"] if pair["pair_id"] == pair_id), None)


def next_pair_id(manifest: Manifest) -> str:
    """The first ``pair_NNNN`` above every number in use."""
    numbers = [int(m.group(1)) for pair in manifest["pairs"] if (m := _PAIR_ID.fullmatch(pair["pair_id"]))]
    return f"pair_{max(numbers, default=-1) + 1:04d}"


def has_existing_exports(output_dir: str | os.PathLike[str]) -> bool:
    """Return whether the folder already holds pairs, from a manifest or as files."""
    base = Path(output_dir)
    return (base / MANIFEST_NAME).exists() or any(True for _ in pair_images(base, "chosen"))


def make_pair(
    pair_id: str,
    chosen: Path,
    rejected: Path,
    prompt: str,
    aspectratio: str,
    sources: Sequence[SourceImage] = (),
) -> Pair:
    """Make a manifest entry for images not copied yet (``copy_pair`` fills in ``hashes``).

    Args:
        sources: the images that both sides are edits of.
    """
    made = {
        "pair_id": pair_id,
        "prompt": prompt,
        "aspectratio": aspectratio,
        "chosen_file": f"chosen/{pair_id}{chosen.suffix.lower()}",
        "rejected_file": f"rejected/{pair_id}{rejected.suffix.lower()}",
        "sources": {"chosen": str(chosen), "rejected": str(rejected)},
        "hashes": {},
    }
    return {**made, KEY: source_entries(pair_id, sources)} if sources else made


def copy_pair(output_dir: str | os.PathLike[str], pair: Pair) -> Pair:
    """Copy images, captions and sources of ``pair`` to their final names. On failure, none remain.

    Raises:
        UserError: an image cannot be copied or fully decoded (``UndecodableImage``), or a source has changed
            (``LostSource``).
    """
    owned = owned_pairs(output_dir)
    done: list[str] = []
    try:
        hashes = {}
        copy_sources(owned, pair)
        for side in SIDES:
            done.append(pair[f"{side}_file"])
            hashes[side] = copy_into(owned, pair["sources"][side], done[-1])
            write_caption(owned, done[-1], pair["prompt"])
        for side, name in zip(SIDES, done, strict=True):
            check_decodes(owned.path(name), Path(pair["sources"][side]))
    except (UserError, OSError):
        for name in done:
            unlink_with_caption(owned, name)
        remove_sources(owned, pair)
        raise
    return {**pair, "hashes": hashes}


def export_single_pair(
    output_dir: str | os.PathLike[str],
    manifest: Manifest,
    chosen_path: str | os.PathLike[str],
    rejected_path: str | os.PathLike[str],
    prompt: str,
    aspectratio: str,
) -> Pair:
    """Copy one pair into the output folder, add it to ``manifest`` under its normalised prompt, and save it.

    Returns:
        The manifest entry. On failure, the folder and ``manifest`` are unchanged.

    Raises:
        UserError: a source is unreadable, both sides are the same file, the folder has this pair reversed, or
            the disk is full.
    """
    chosen, rejected = Path(chosen_path), Path(rejected_path)
    if chosen.resolve() == rejected.resolve():
        raise UserError(f"chosen and rejected are the same file: {chosen}")
    for path in (chosen, rejected):
        if path.suffix.lower() not in IMAGE_EXTENSIONS:
            raise UserError(
                f"{path} has no image extension", hint=f"known: {', '.join(sorted(IMAGE_EXTENSIONS))}"
            )
    prompt = normalise_prompt(prompt)
    other_way = {"chosen": _hash_of(rejected), "rejected": _hash_of(chosen)}
    if any(
        pair.get("hashes") == other_way and normalise_prompt(pair["prompt"]) == prompt
        for pair in manifest["pairs"]
    ):
        raise DataError(
            f"{rejected} is already preferred to {chosen} under the same prompt",
            hint="remove that pair in the review window, if this one is right",
        )
    pair_id = next_pair_id(manifest)
    while name_is_taken(output_dir, pair_id):
        pair_id = f"pair_{int(pair_id.removeprefix('pair_')) + 1:04d}"
    made = make_pair(pair_id, chosen, rejected, prompt, aspectratio)
    pair = copy_pair(output_dir, made)
    manifest["pairs"].append(pair)
    try:
        save_manifest(output_dir, manifest)
    except OSError as error:
        manifest["pairs"].pop()
        for side in SIDES:
            unlink_with_caption(owned_pairs(output_dir), pair[f"{side}_file"])
        raise UserError(f"cannot save the manifest in {output_dir}: {error.strerror}") from error
    return pair


def export_curated_pairs(
    groups: Sequence[Mapping[str, Any]],
    results: Sequence[Sequence[tuple[str, str]]],
    output_dir: str | os.PathLike[str],
    val_percentage: float,
) -> tuple[int, int]:
    """Export the picks of many groups at once and finalise.

    Contradictory pairs (the same two images both ways round under one prompt, also in the folder) are left
    out, and the log says how many.

    Args:
        groups: one mapping with ``prompt`` and ``aspectratio`` per group.
        results: (chosen path, rejected path) pairs of each group.
        val_percentage: share of pairs for validation, in percent.

    Returns:
        (pairs in train, pairs in val) of the whole folder.
    """
    if len(groups) != len(results):
        raise ValueError(f"{len(groups)} groups but {len(results)} results")
    manifest = load_manifest(output_dir)
    preferences = _preferences(manifest["pairs"])
    asked = []
    for group, pairs in zip(groups, results, strict=True):
        for chosen, rejected in pairs:
            facts = (normalise_prompt(group["prompt"]), _hash_of(chosen), _hash_of(rejected))
            preferences.add(*facts)
            asked.append((facts, chosen, rejected, str(group["aspectratio"])))
    sound = [pick for pick in asked if not preferences.is_contradictory(*pick[0])]
    for (prompt, *_), chosen, rejected, aspectratio in sound:
        export_single_pair(output_dir, manifest, chosen, rejected, prompt, aspectratio)
    if len(sound) < len(asked):
        log.warning("%s left out: they contradict each other", counted(len(asked) - len(sound), "pair"))
    return finalize_export(output_dir, manifest, val_percentage)


def _hash_of(image: str | os.PathLike[str]) -> str:
    with refused_as(f"cannot read {shown(image)}", hint="nothing was changed"):
        return file_sha256(image)


def _preferences(pairs: Iterable[Pair]) -> Preferences:
    found = Preferences()
    for pair in pairs:
        hashes = pair.get("hashes", {})
        found.add(normalise_prompt(pair["prompt"]), *(str(hashes.get(side, "")) for side in SIDES))
    return found


def split_prompts(prompts: Mapping[str, int], val_percentage: float) -> set[str]:
    """Choose prompts for validation: whole groups, in an order determined by the prompts themselves.

    A prompt stays on its side when others are added, as far as the percentage allows. At least one prompt
    stays in train. With two or more prompts and a percentage above 0, at least one goes to validation. Up to
    50 %, at least half of the pairs stay in train, however unequal the groups are.

    Args:
        prompts: number of pairs of each prompt.
        val_percentage: share of the pairs for validation, from 0 to 100.

    Raises:
        UserError: the percentage is out of range.
    """
    if not 0 <= val_percentage <= 100:
        raise UserError(f"the validation percentage {val_percentage} is not between 0 and 100")
    if val_percentage == 0 or len(prompts) < 2:
        return set()
    total = sum(prompts.values())
    target = total * val_percentage / 100
    order = sorted(prompts, key=lambda prompt: (digest64("validation-split", prompt), prompt))
    chosen: set[str] = set()
    count = 0
    for prompt in order:
        size = prompts[prompt]
        fits = count + size / 2 <= target and count + size <= max(target, total / 2)
        if fits and len(chosen) < len(order) - 1:
            chosen.add(prompt)
            count += size
    # if every prompt alone exceeds the share, the smallest one exceeds it least
    return chosen or {min(order, key=lambda prompt: prompts[prompt])}


def finalize_export(
    output_dir: str | os.PathLike[str], manifest: Manifest, val_percentage: float
) -> tuple[int, int]:
    """Split the pairs into train and val by prompt and write ``concepts.json``. May be repeated at any time.

    Files are moved by renaming. After a crash, every file has one of its possible names, and the next call
    finds it.

    Returns:
        (pairs in train, pairs in val).

    Raises:
        DataError: there are no pairs, files of a pair are missing (all are listed), or only some pairs are edits.
    """
    base = Path(output_dir)
    if not manifest["pairs"]:
        raise DataError(f"there are no pairs in {base}", hint="pick some first")
    missing = find_orphaned_pairs(base, manifest)
    if missing:
        listed = "\n".join(f"    {pair['pair_id']}" for pair in missing[:20])
        raise DataError(
            f"{counted(len(missing), 'pair has', 'pairs have')} lost a file:\n{listed}",
            hint="remove them in the review window or with curate.py review --fix, or restore the files",
        )
    edits = are_edits(manifest["pairs"])
    owned = owned_pairs(base)
    _check_no_file_twice(base, manifest)
    validation = split_prompts(Counter(p["prompt"] for p in manifest["pairs"]), val_percentage)
    counts = {"train": 0, "val": 0}
    for pair in manifest["pairs"]:
        split = "val" if pair["prompt"] in validation else "train"
        counts[split] += 1
        for side in SIDES:
            _move_pair_file(owned, base, pair, side, split)
    write_confidences(owned, manifest)
    for side in SIDES:
        for split in SPLITS:
            owned.folder(f"{side}/{split}")
            owned.sync(f"{side}/{split}")
        owned.sync(side)
    save_manifest(base, manifest)
    write_concepts(base, counts, edits)
    return counts["train"], counts["val"]


def write_confidences(owned: Owned, manifest: Manifest) -> None:
    """Write how sure the person was of the pairs next to their chosen images, where training looks for it."""
    for split in SPLITS:
        place = f"chosen/{split}"
        owned.folder(place)
        here = [pair for pair in manifest["pairs"] if pair["chosen_file"].startswith(f"{place}/")]
        write_confidence(
            owned, place, {pair["pair_id"]: pair["certainty"] for pair in here if "certainty" in pair}
        )


def _check_no_file_twice(base: Path, manifest: Manifest) -> None:
    owners: dict[Path | None, str] = {}
    for pair in manifest["pairs"]:
        for side in SIDES:
            file = locate_pair_file(base, pair, side)
            other = owners.setdefault(file, pair["pair_id"])
            if other != pair["pair_id"]:
                raise DataError(
                    f"the pairs {other} and {pair['pair_id']} name the same file, {shown(str(file))}",
                    hint="remove one of them in the review window; nothing was moved",
                )


def _move_pair_file(owned: Owned, base: Path, pair: Pair, side: str, split: str) -> None:
    current = locate_pair_file(base, pair, side)
    assert current is not None  # checked by the caller
    name, target = name_below(base, current), f"{side}/{split}/{pair['pair_id']}{current.suffix}"
    if name != target:
        if current.with_suffix(".txt").is_file():
            owned.move(caption_name(name), caption_name(target), replace=True)
        owned.move(name, target)
    pair[f"{side}_file"] = target
    image = base / target
    if not image.with_suffix(".txt").is_file() or read_caption(image) == UNCONDITIONAL:
        write_caption(owned, target, pair["prompt"])


def find_orphaned_pairs(output_dir: str | os.PathLike[str], manifest: Manifest) -> list[Pair]:
    """Manifest entries with a missing image, sources included."""
    base = Path(output_dir)
    return [
        pair
        for pair in manifest["pairs"]
        if any(locate_pair_file(base, pair, side) is None for side in SIDES) or missing_sources(base, pair)
    ]


def remove_pair(output_dir: str | os.PathLike[str], manifest: Manifest, pair_id: str) -> Pair:
    """Remove a pair from manifest and disk: both sides, captions and sources. Returns the removed entry.

    Raises:
        UserError: the pair does not exist.
    """
    base, owned = Path(output_dir), owned_pairs(output_dir)
    pair = entry_of(manifest, pair_id)
    if pair is None:
        raise UserError(f"there is no pair {pair_id!r} in {base}")
    files = [locate_pair_file(base, pair, side) for side in SIDES]
    manifest["pairs"].remove(pair)
    save_manifest(base, manifest)
    for file in files:
        if file is not None:
            unlink_with_caption(owned, name_below(base, file))
    remove_sources(owned, pair)
    return dict(pair)


def remove_finalized_pair(output_dir: str | os.PathLike[str], pair_id: str) -> None:
    """Delete both sides of a finalised pair, and its manifest entry if it has one.

    Raises:
        UserError: the pair does not exist.
    """
    manifest = load_manifest(output_dir)
    if entry_of(manifest, pair_id) is not None:
        remove_pair(output_dir, manifest, pair_id)
        return
    files = [find_exported_file(output_dir, side, pair_id) for side in SIDES]
    if not any(files):
        raise UserError(f"there is no pair {pair_id!r} in {output_dir}")
    for file in files:
        if file is not None:
            unlink_with_caption(owned_pairs(output_dir), name_below(output_dir, file))
    for file in find_sources(Path(output_dir), pair_id):
        owned_pairs(output_dir).remove(name_below(output_dir, file))
