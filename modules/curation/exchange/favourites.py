"""Turns ratings from other programs into pairs: stars, ratings and a folder of favourites.

A like is SwarmUI's star (``is_starred`` in the image's metadata or in the ``.swarm.json`` next to it, or a
copy in the folder ``Starred``), an XMP rating of 4 or 5 in the file or a sidecar, or the same file in a
folder of favourites. An XMP rating of 1 or -1 (rejected) is a dislike. Images without a mark count as seen.
Within a prompt, liked images beat disliked and seen ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.curation.exchange.public_formats import BadRow, PublicPair
from modules.curation.intake.scan import ScanFault, natural_key, output_folders, scan_images
from modules.util.bucket import aspect_label
from modules.util.errors import DataError, UserError
from modules.util.image_metadata.containers.exif import decode_text
from modules.util.image_metadata.containers.source import Source
from modules.util.image_metadata.limits import Unusable
from modules.util.image_metadata.normalise import normalise_prompt
from modules.util.image_metadata.reader import SWARM, open_fields
from modules.util.pairs.dpo_pair_files import file_sha256, image_files

LIKE, DISLIKE = "like", "dislike"
STARRED_FOLDER = "Starred"
MAX_SIDECAR = 1 << 20
_RATING = re.compile(r"""xmp:Rating\s?(?:=\s?["']|>)\s?(-?\d)(?:\.\d{1,6})?\s?["'<]""")
_STARRED = re.compile(r'"is_starred"\s{0,8}:\s{0,8}(true|false)\b')


@dataclass(frozen=True)
class Mark:
    """A like or a dislike.

    Args:
        file: the image.
        mark: ``like`` or ``dislike``.
        why: the source of the mark.
    """

    file: str
    prompt: str
    mark: str
    why: str


class Favourites:
    """The pairs implied by marks on the images of a folder. Can be iterated repeatedly.

    Args:
        output: output folder of the pairs; excluded from the scan.
        favourites: folder with copies of liked images.

    Attributes:
        marks: every like and dislike, in the order of prompts and files.
        without_prompt: files that have no prompt or are unreadable.

    Raises:
        UserError: a folder is unreadable, or nothing is liked.
    """

    def __init__(self, source: Path, output: Path, favourites: Path | None = None) -> None:
        if not source.is_dir():
            raise UserError(f"{source} is not a folder", hint="give the folder with the marked images")
        liked = set() if favourites is None else _hashes(favourites)
        starred = _hashes(source / STARRED_FOLDER) if (source / STARRED_FOLDER).is_dir() else set()
        self.marks: list[Mark] = []
        self._pairs: list[PublicPair | BadRow] = []
        self.without_prompt = 0
        for (prompt, _), names in sorted(self._groups(source, output).items()):
            self._take(source, prompt, names, liked, starred)
        if not any(one.mark == LIKE for one in self.marks):
            raise UserError(
                f"no image in {source} is marked as liked",
                hint="star images in SwarmUI, give them XMP ratings of 4 or 5, or name a folder with copies of the "
                "liked images: --favourites FOLDER",
            )

    def __iter__(self) -> Iterator[PublicPair | BadRow]:
        yield from self._pairs

    def _groups(self, source: Path, output: Path) -> dict[tuple[str, str], list[str]]:
        """Names of images by prompt and shape, in natural order."""
        groups: dict[tuple[str, str], list[str]] = {}
        for found in scan_images(source, output_folders(source, output)):
            if isinstance(found, ScanFault):
                self.without_prompt += 1
                continue
            key = normalise_prompt(found.about.prompt or ""), aspect_label(*found.about.seen_size)
            groups.setdefault(key, []).append(found.name)
        # of two copies, the one outside the folder of stars represents both
        return {
            key: sorted(names, key=lambda name: (STARRED_FOLDER in name.split("/")[:-1], natural_key(name)))
            for key, names in groups.items()
        }

    def _take(
        self, source: Path, prompt: str, names: Sequence[str], liked: set[str], starred: set[str]
    ) -> None:
        marked: dict[str, list[Path]] = {LIKE: [], DISLIKE: [], "": []}
        met: set[str] = set()
        for name in names:
            path = source / name
            try:
                digest = file_sha256(path)
                found = _said_in_file(path) or _said_elsewhere(digest, liked, starred)
            except (OSError, DataError) as error:
                self._pairs.append(BadRow(f"{path}: {error}"))
                continue
            if digest in met:
                continue
            met.add(digest)
            mark, why = found or ("", "")
            marked[mark].append(path)
            if mark:
                self.marks.append(Mark(name, prompt, mark, why))
        worse = [*marked[DISLIKE], *marked[""]]
        for place, path in enumerate(marked[LIKE] if worse else ()):
            self._pairs.append(PublicPair(prompt, path, worse[place % len(worse)]))


def _hashes(folder: Path) -> set[str]:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder", field="--favourites")
    try:
        return {file_sha256(path) for path in image_files(folder.rglob("*"))}
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}", field="--favourites") from error


def _said_elsewhere(digest: str, liked: set[str], starred: set[str]) -> tuple[str, str] | None:
    if digest in starred:
        return LIKE, f"a copy in {STARRED_FOLDER}"
    return (LIKE, "a copy in the favourites") if digest in liked else None


def _said_in_file(path: Path) -> tuple[str, str] | None:
    """The mark in the image or in the files next to it. The files take precedence, because they are newer: their
    rating or star replaces that of the image, even if it does not count as a mark.
    """
    sidecars = (path.with_name(f"{path.name}.xmp"), path.with_suffix(".xmp"))
    outside = next((found for one in sidecars if (found := _rating(_beside(one), one.name))), None)
    if outside is not None and (mark := _mark_of(outside)) is not None:
        return mark
    star = _star(_beside(path.with_suffix(SWARM)))
    if star:
        return LIKE, "starred in SwarmUI"
    try:
        with Source(path) as source:
            fields = open_fields(source)
            fields.more()
            texts: list[str] = [
                text for key in ("parameters", "sui_image_params") for text in fields.texts(key)
            ]
            texts += fields.exif().values()
            packets: list[Any] = fields.xmp_packets()
    except Unusable as error:
        raise DataError(str(error)) from error
    if star is None and any(_star(text) for text in texts):
        return LIKE, "starred in SwarmUI"
    inside = (_rating(one, "the file") for one in packets) if outside is None else ()
    return next((mark for one in inside if one and (mark := _mark_of(one)) is not None), None)


def _beside(path: Path) -> str:
    """The text of a small file; empty if it does not exist."""
    try:
        with Source(path) as source:
            return decode_text(source.read(0, min(source.size, MAX_SIDECAR)))
    except Unusable:
        return ""


def _star(text: str) -> bool | None:
    """Return whether SwarmUI's metadata have a star; ``None`` if they do not say."""
    found = _STARRED.search(text)
    return None if found is None else found[1] == "true"


def _rating(packet: str, where: str) -> tuple[int, str] | None:
    """The rating in an XMP packet and where it is; ``None`` if there is none."""
    found = _RATING.search(packet)
    return None if found is None else (int(found[1]), where)


def _mark_of(rated: tuple[int, str]) -> tuple[str, str] | None:
    rating, where = rated
    if rating in (4, 5):
        return LIKE, f"rated {rating} in {where}"
    return (DISLIKE, f"rated {rating} in {where}") if rating in (1, -1) else None
