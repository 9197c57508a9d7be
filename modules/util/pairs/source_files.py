"""File names of edited source images: the first is named like the result, others have a number before the
extension.

``pair_0000.png``, ``pair_0000.2.png``, ``pair_0000.3.png``
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from modules.util.pairs.dpo_pair_files import IMAGE_EXTENSIONS

MOST_SOURCES = 9


class SourceImage(NamedTuple):
    """A source image at the place where it was found.

    Args:
        sha256: hash of its bytes at that time.
    """

    path: Path
    sha256: str


def source_stem(stem: str, number: int) -> str:
    """The name of the ``number``-th source of a result, counted from 1, without extension."""
    return stem if number == 1 else f"{stem}.{number}"


def further_sources(first: Path) -> list[Path]:
    """A source and the further ones next to it, in order. The first may be missing."""
    found = [first]
    for number in range(2, MOST_SOURCES + 1):
        stem = source_stem(first.stem, number)
        endings = dict.fromkeys((first.suffix, *sorted(IMAGE_EXTENSIONS)))
        there = next((path for end in endings if (path := first.with_name(stem + end)).is_file()), None)
        if there is None:
            break
        found.append(there)
    return found


def most_sources(folder: Path, most: int) -> int:
    """The largest number of sources of any result below a folder, by their names, from 1 to ``most``."""
    images = folder.rglob("*.*") if folder.is_dir() else ()
    names = {path.with_suffix("") for path in images if path.suffix.lower() in IMAGE_EXTENSIONS}
    found = 1
    for second in names:
        first = second.with_suffix("")
        if second.suffix == ".2" and first in names:
            numbers = range(2, min(most, MOST_SOURCES) + 1)
            own = (first.with_name(source_stem(first.name, number)) in names for number in numbers)
            found = max(found, 1 + sum(takewhile(bool, own)))
    return found


def sources_of(stem: str, by_stem: dict[str, Path], results: Collection[str]) -> tuple[Path, ...]:
    """The sources of a result among all images of a folder; empty if the first is missing.

    Args:
        results: stems of all results, because the source of ``cat.2`` is not a second source of ``cat``.
    """
    names = [source_stem(stem, number) for number in range(1, MOST_SOURCES + 1)]
    return tuple(
        _until_missing(by_stem.get(name) if name == stem or name not in results else None for name in names)
    )


def _until_missing(paths: Iterable[Path | None]) -> Iterable[Path]:
    for path in paths:
        if path is None:
            return
        yield path
