"""Contestants from folders of images, which keep their votes as long as the images stay the same."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from modules.arena.Arena import check_different
from modules.arena.Contestant import Contestant
from modules.util.display import counted
from modules.util.errors import DataError, UserError, refused_as
from modules.util.jsonio import read_json
from modules.util.owned_files import Owned, shown
from modules.util.pairs.decoding import IMAGE_ERRORS
from modules.util.pairs.dpo_pair_files import file_sha256
from modules.util.pairs.grey_levels import eight_bits, is_deep

LIST = "contestants.json"
"""File next to the votes: the contents of the images that each key of a vote stands for. ``images`` has digests of the
files, ``shown`` of their pixels, because other programs write into the metadata of images."""
MANY = 200


def check_folders(named: Sequence[tuple[str, Path]]) -> None:
    """Check, before anything is made for their votes, that folders can be compared.

    Raises:
        UserError: there are fewer than two, or one is missing or has no usable images.
    """
    check_different([name for name, _ in named])
    for name, folder in named:
        Contestant.of_folder(name, name, folder)


def contestants_of_folders(
    named: Sequence[tuple[str, Path]], votes: Path, tell: Callable[[str], None]
) -> list[Contestant]:
    """The images of folders as contestants. A folder whose images were replaced under the same name is another
    contestant. Images may be added and removed.

    Args:
        named: names and folders.
        votes: folder of the votes.
        tell: called with a line for each folder whose images were replaced, or whose images take a while to read.

    Raises:
        UserError: a folder is missing or has no usable images, a name is given twice, or the list of contestants is
            damaged.
    """
    twice = next((name for name, count in Counter(name for name, _ in named).items() if count > 1), None)
    if twice is not None:
        raise DataError(
            f"comparing needs two different contestants or more, but {twice} is named twice",
            "--between",
            "give each folder a name of its own, as in NAME=FOLDER",
        )
    known = _read(votes)
    before = json.dumps(known)
    made = []
    for name, folder in named:
        one = Contestant.of_folder(name, name, folder)
        paths = {f"{prompt}\n{seed}": path for (prompt, seed), path in one.images.items()}
        images = {question: _digest(path) for question, path in paths.items()}
        earlier: list[dict[str, Any]] = known.setdefault(name, [])
        entry = next((found for found in earlier if _agree(found, images, paths)), None)
        if entry is None:
            key = name
            if earlier:
                key = f"{name}#{hashlib.sha256(json.dumps(images, sort_keys=True).encode()).hexdigest()[:16]}"
                tell(f"the images of {name} were replaced since the last votes, so it begins without votes")
            entry = {"key": key, "images": {}}
            earlier.append(entry)
        entry["images"] |= images
        seen = entry.setdefault("shown", {})
        unseen = {question: path for question, path in paths.items() if question not in seen}
        if len(unseen) >= MANY:
            tell(f"reading {counted(len(unseen), 'image')} of {name}, once")
        seen |= {question: _digest_of_pixels(path) for question, path in unseen.items()}
        made.append(Contestant(name, entry["key"], one.images))
    if json.dumps(known) != before:
        with Owned(votes).write(LIST) as temporary:
            temporary.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return made


def _agree(entry: dict[str, Any], images: dict[str, str], paths: dict[str, Path]) -> bool:
    """Return whether every image with a stored prompt and seed has the stored content, or at least the same pixels."""
    files, pixels = entry["images"], entry.get("shown", {})
    return all(
        files.get(question, digest) == digest or pixels.get(question) == _digest_of_pixels(paths[question])
        for question, digest in images.items()
    )


def _digest(path: Path) -> str:
    with refused_as(f"{shown(path)} cannot be read", "--between", kind=DataError):
        return file_sha256(path)[:32]


def _digest_of_pixels(path: Path) -> str:
    """Digest of what is displayed; of the file, if it cannot be decoded."""
    try:
        with Image.open(path) as image:
            # converting deep levels to RGBA would make them all white
            levels = Image.fromarray(eight_bits(image)) if is_deep(image) else image
            upright = ImageOps.exif_transpose(levels).convert("RGBA")
        return hashlib.sha256(f"{upright.size}".encode() + upright.tobytes()).hexdigest()[:32]
    except IMAGE_ERRORS:
        return _digest(path)


def _read(votes: Path) -> dict[str, list[dict[str, Any]]]:
    path = votes / LIST
    if not path.is_file():
        return {}
    data = read_json(path, "list of contestants")
    good = isinstance(data, dict) and all(
        isinstance(one, dict)
        and isinstance(one.get("key"), str)
        and isinstance(one.get("images"), dict)
        and isinstance(one.get("shown", {}), dict)
        for entries in data.values()
        for one in (entries if isinstance(entries, list) else [None])
    )
    if not good:
        raise UserError(f"{shown(path)} is not a list of contestants", hint="restore it from a copy")
    listed: dict[str, list[dict[str, Any]]] = data
    return listed
