"""The source images of edits: their manifest entries, and their copies in an output folder.

They are in one folder for train and val, ``source/pair_0000.png``, ``source/pair_0000.2.png``, and stay there
when the pairs are finalised. A manifest entry lists them under ``source_images``; an entry without is not an
edit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from modules.util.display import counted
from modules.util.errors import DataError, UserError, list_offenders
from modules.util.owned_files import Owned, shown
from modules.util.pairs.decoding import UndecodableImage, check_decodes, undecodable
from modules.util.pairs.dpo_pair_files import (
    IMAGE_EXTENSIONS,
    SOURCE_FOLDER,
    Pair,
    caption_of,
    copy_into,
    file_sha256,
    locate_pair_file,
)
from modules.util.pairs.source_files import MOST_SOURCES, SourceImage, further_sources, source_stem

KEY = "source_images"


class LostSource(DataError):
    """The source image of an edit has changed since it was found."""


def source_entries(pair_id: str, sources: Sequence[SourceImage]) -> list[dict[str, str]]:
    """The manifest entries for the sources of a pair."""
    return [
        {
            "file": f"{SOURCE_FOLDER}/{source_stem(pair_id, number)}{source.path.suffix.lower()}",
            "sha256": source.sha256,
            "from": str(source.path),
        }
        for number, source in enumerate(sources, 1)
    ]


def check_source_entries(pair: Pair, where: str) -> None:
    """Check the source entries of a pair.

    Raises:
        UserError: they are invalid; ``where`` names the pair.
    """
    entries: Any = pair.get(KEY, [])
    if not isinstance(entries, list) or len(entries) > MOST_SOURCES:
        raise UserError(f"{where}.{KEY} is not a list of up to {MOST_SOURCES} images")
    for number, entry in enumerate(entries, 1):
        texts = entry if isinstance(entry, dict) else {}
        if not all(isinstance(texts.get(name), str) for name in ("file", "sha256", "from")):
            raise UserError(f"{where}.{KEY}: entry {number} lacks file, sha256 or from")
        name = PurePosixPath(texts["file"])
        plain = f"{SOURCE_FOLDER}/{source_stem(pair['pair_id'], number)}{name.suffix}"
        if texts["file"] != plain or name.suffix.lower() not in IMAGE_EXTENSIONS:
            raise UserError(f"{where}.{KEY}: {shown(texts['file'])!r} is not the name of source {number}")


def source_names(pair: Pair) -> list[str]:
    """The names of a pair's sources in its output folder; empty if it is not an edit."""
    return [entry["file"] for entry in pair.get(KEY, [])]


def copy_sources(owned: Owned, pair: Pair) -> None:
    """Copy the sources of a pair to their final names.

    Raises:
        LostSource: a source is gone, replaced or damaged. UserError: a source cannot be copied.
    """
    for entry in pair.get(KEY, []):
        origin = Path(entry["from"])
        if not origin.is_file():
            raise LostSource(f"the source image {shown(origin)} no longer exists", hint="put it back")
        if copy_into(owned, origin, entry["file"]) != entry["sha256"]:
            raise LostSource(
                f"the source image {shown(origin)} was replaced since it was found",
                hint="open the folder with images again",
            )
        try:
            check_decodes(owned.path(entry["file"]), origin)
        except UndecodableImage as error:
            raise LostSource(f"the source image {error.message}", hint=error.hint) from error


def remove_sources(owned: Owned, pair: Pair) -> None:
    """Remove the copies of a pair's sources, as far as they exist."""
    for name in source_names(pair):
        owned.remove(name)


def find_sources(output_dir: Path, pair_id: str) -> list[Path]:
    """The sources of a pair, found by name, in order; empty if the first is missing."""
    folder = output_dir / SOURCE_FOLDER
    endings = sorted(IMAGE_EXTENSIONS)
    first = next((path for end in endings if (path := folder / f"{pair_id}{end}").is_file()), None)
    return [] if first is None else further_sources(first)


def missing_sources(output_dir: Path, pair: Pair) -> list[str]:
    """The sources that the manifest lists but the folder lacks."""
    return [name for name in source_names(pair) if not (output_dir / name).is_file()]


@dataclass
class SourceCheck:
    """Faults of the sources of a folder of pairs. Empty lists mean that there are none.

    ``kept`` is not a fault: the rejected image is the source itself.
    """

    missing: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    not_edited: list[str] = field(default_factory=list)
    empty_instructions: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if a model can learn to edit from these pairs."""
        return not (self.missing or self.unreadable or self.not_edited or self.empty_instructions)


def check_sources(output_dir: Path, pairs: Sequence[Pair]) -> SourceCheck | None:
    """Compare pairs with their sources; ``None`` if they are not edits.

    Raises:
        DataError: only some pairs are edits.
    """
    if not pairs or not are_edits(pairs):
        return None
    check = SourceCheck()
    for pair in pairs:
        name = pair["pair_id"]
        check.missing += missing_sources(output_dir, pair)
        sources = [file for one in source_names(pair) if (file := output_dir / one).is_file()]
        hashes = {file_sha256(file) for file in sources}
        check.unreadable += [fault.message for fault in undecodable(sources) if fault is not None]
        for side, same in (("chosen", check.not_edited), ("rejected", check.kept)):
            image = locate_pair_file(output_dir, pair, side)
            same += [name] if image is not None and file_sha256(image) in hashes else []
        check.empty_instructions += [] if caption_of(pair["prompt"]) else [name]
    return check


def are_edits(pairs: Sequence[Pair]) -> bool:
    """Return whether pairs are edits of source images.

    Raises:
        DataError: only some are. No model can learn from both kinds in one concept.
    """
    without = [pair["pair_id"] for pair in pairs if not pair.get(KEY)]
    if 0 < len(without) < len(pairs):
        raise DataError(
            f"{counted(len(pairs) - len(without), 'pair is an edit', 'pairs are edits')} of source images, and "
            f"{counted(len(without), 'has', 'have')} no source image:\n{list_offenders(without)}",
            hint="remove one kind in the review, and pick its pairs into another folder",
        )
    return not without
