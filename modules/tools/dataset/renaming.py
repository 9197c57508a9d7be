"""Renames images by a pattern, together with captions and masks, all at once or not at all."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from modules.tools.dataset.files import (
    DataImage,
    check_links,
    check_utf8,
    find_images,
    images_after,
    shared_files,
    sources_of_edits,
)
from modules.tools.Journal import Journal
from modules.util.errors import ConfigError, DataError, list_offenders
from modules.util.owned_files import Owned

FIELDS = "{number}, {number:4} (four digits), {name}, {folder}"
_FIELD = re.compile(r"\{(number|name|folder)(?::0?([1-9]))?\}")


class Renaming(NamedTuple):
    """A plan of renaming.

    Args:
        names: old to new name of every renamed file.
        taken: existing files with one of the new names, or that would become the caption or mask of a renamed image.
    """

    names: dict[str, str]
    taken: list[str]


def plan_renaming(root: Path, pattern: str, start: int = 1, subfolders: bool = False) -> Renaming:
    """Plan the new name of each file. Nothing is changed. Images stay in their folders, and sources of edits keep
    being named after their results.

    Args:
        pattern: pattern of the name without extension; see ``FIELDS``.
        start: the first number. Each folder is numbered separately.

    Raises:
        UserError: the pattern is invalid, two files would get the same name, a file belongs, or would belong, to two
            images, or a link leads to a renamed file.
    """
    if not _FIELD.search(pattern) or set(_FIELD.sub("", pattern)) & set("{}/\\"):
        raise ConfigError(
            f"{pattern!r} is not a pattern", "--pattern", f"it needs one of {FIELDS}, and no slash"
        )
    images = find_images(root, subfolders)
    results = sources_of_edits(images)
    shared = [*shared_files(images), *_shared_sources(images, results)]
    if shared:
        raise DataError(
            f"files belong to several images:\n{list_offenders(shared)}",
            hint="rename or remove one of these images",
        )
    names: dict[str, str] = {}
    stems: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for image in sorted(images, key=lambda image: image.name in results):
        folder = str(PurePosixPath(image.name).parent)
        if image.name in results:
            result = results[image.name]
            stem = stems[result] + image.stem[len(result) :]
        else:
            place = folder if folder != "." else root.resolve().name
            stem = stems[image.stem] = _filled(pattern, image, start + counts[folder], place)
            counts[folder] += 1
        old = len(image.stem)
        for name in image.all:
            names[name] = (PurePosixPath(folder) / (stem + name[old:])).as_posix()
    names = {old: new for old, new in names.items() if old != new}
    check_links(root, images, names)
    taken = _check_names(root, names)
    adopted = _adopted(images, images_after(root, subfolders, names), names)
    return Renaming(names, [*taken, *(name for name in adopted if name not in taken)])


def _shared_sources(images: Sequence[DataImage], results: Mapping[str, str]) -> list[str]:
    """Sources that belong to several images of the same name in different formats."""
    often = Counter(image.stem for image in images)
    return [f"{name} ({stem}.*)" for name, stem in results.items() if often[stem] > 1]


def _adopted(before: list[DataImage], after: list[DataImage], names: Mapping[str, str]) -> list[str]:
    """Files of no image, such as the caption of a deleted one, that would belong to a renamed image.

    Raises:
        DataError: a file of one image would belong to another one too.
    """
    owned = {names.get(name, name): image.name for image in before for name in image.all}
    shared, adopted = [], []
    for image in after:
        for name in (*image.masks, *image.others):
            if name not in owned:
                adopted.append(name)
            elif names.get(owned[name], owned[name]) != image.name:
                shared.append(f"{name} ({image.name})")
    if shared:
        raise DataError(
            f"files would belong to another image too:\n{list_offenders(shared)}",
            "--pattern",
            "put {number} into the pattern",
        )
    return adopted


def _filled(pattern: str, image: DataImage, number: int, folder: str) -> str:
    values = {"name": PurePosixPath(image.stem).name, "folder": PurePosixPath(folder).name}

    def fill(found: re.Match[str]) -> str:
        if found[1] == "number":
            return str(number).zfill(int(found[2] or 0))
        return values[found[1]]

    return _FIELD.sub(fill, pattern)


def _check_names(root: Path, names: dict[str, str]) -> list[str]:
    """The files that have one of the new names, except those that are renamed themselves."""
    often = Counter(name.casefold() for name in names.values())
    twice = [f"{old} -> {new}" for old, new in names.items() if often[new.casefold()] > 1]
    if twice:
        raise DataError(
            f"files would get the same name:\n{list_offenders(twice)}",
            "--pattern",
            "put {number} into the pattern",
        )
    # the pattern and the folder's own name may contain anything
    check_utf8(names.values())
    owned = Owned(root)
    for name in names.values():
        owned.path(PurePosixPath(name).name)
    return [new for new in names.values() if os.path.lexists(root / new) and not _is_itself(root, new, names)]


def _is_itself(root: Path, new: str, names: dict[str, str]) -> bool:
    """Return whether a taken name belongs to a renamed file; on some disks, ``A.png`` is ``a.png``."""
    if new in names:
        return True
    same = [old for old in names if old.casefold() == new.casefold()]
    return any((root / old).samefile(root / new) for old in same)


def carry_out(root: Path, plan: Renaming, overwrite: bool = False) -> None:
    """Apply a plan: all of it, or after a fault or a kill nothing. ``Journal.undo`` undoes it.

    Args:
        overwrite: whether files with one of the new names may be removed.

    Raises:
        UserError: names are taken. Nothing was changed.
    """
    check_taken(plan.taken, overwrite)
    with Journal(root).job("rename") as job:
        job.give_names(plan.names, plan.taken)


def check_taken(taken: Sequence[str], overwrite: bool) -> None:
    """Refuse to remove files that are in the way, unless that is allowed.

    Raises:
        DataError: there are such files.
    """
    if taken and not overwrite:
        raise DataError(
            f"files with these names already exist:\n{list_offenders(taken)}",
            hint="choose other names, or move these files away with --overwrite; undo restores them",
        )
