"""The images that a project's prompts edit: copies in its folder, named by their content."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from modules.util.errors import DataError, refused_as
from modules.util.image_metadata_util import read_metadata
from modules.util.owned_files import Owned, shown
from modules.util.pairs.dpo_pair_files import IMAGE_EXTENSIONS, file_sha256
from modules.util.pairs.source_files import further_sources, source_stem

FOLDER = "sources"
NAME = re.compile(r"[0-9a-f]{32}")
MOST_BYTES = 256 * 2**20


class SourceShelf:
    """The folder ``sources`` of a project.

    What a prompt edits, one image or several in order, has one name, which follows from the contents alone. So images
    of the same name elsewhere are never confused, and a copy elsewhere is the same source.
    """

    def __init__(self, owned: Owned) -> None:
        self._owned = owned
        self.folder = owned.root / FOLDER

    def keep(self, paths: Sequence[Path]) -> str:
        """Copy what a prompt edits into the project, unless it is there. Returns its name.

        Raises:
            UserError: a file cannot be read, or is not an image.
        """
        name = name_of_sources(paths)
        if not self.files(name):
            # the first one last: with it, all are there
            for number, path in reversed(list(enumerate(paths, start=1))):
                file = f"{source_stem(name, number)}{path.suffix.lower()}"
                with self._owned.write(f"{FOLDER}/{file}") as temporary:
                    temporary.write_bytes(path.read_bytes())
            self.check([name])
        return name

    def files(self, name: str) -> tuple[Path, ...]:
        """The images of a name, in order; empty if they are missing."""
        if NAME.fullmatch(name) is None:
            return ()
        places = (self.folder / f"{name}{ending}" for ending in sorted(IMAGE_EXTENSIONS))
        first = next((path for path in places if path.is_file()), None)
        return () if first is None else tuple(further_sources(first))

    def check(self, names: Sequence[str]) -> None:
        """Raise ``UserError`` if images are missing, or no longer those that they are named after."""
        for name in names:
            found = self.files(name)
            if not found or name_of_sources(found) != name:
                what = "is missing" if not found else "has changed"
                raise DataError(
                    f"the source image {FOLDER}/{shown(name)} {what}",
                    FOLDER,
                    "put the original image back: other images were made from it",
                )

    def place_next_to(self, name: str, image: str) -> None:
        """Give an image what it was made from, under the names by which the pair tool finds it.

        Args:
            image: file of the image, relative to the project.
        """
        stem = image.rpartition(".")[0]
        for number, path in enumerate(self.files(name), start=1):
            self._owned.take(path, f"{source_stem(f'{stem}-source', number)}{path.suffix}")


def name_of_sources(paths: Sequence[Path]) -> str:
    """The name of images that are edited together, by their contents.

    Raises:
        DataError: one cannot be read, is too large or not an image.
    """
    return name_of_digests([_digest_of(path) for path in paths])


def name_of_digests(digests: Sequence[str]) -> str:
    """As ``name_of_sources``, by the SHA-256 of their bytes."""
    return (
        digests[0][:32] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()[:32]
    )


def _digest_of(path: Path) -> str:
    with refused_as(f"the source image {shown(path)} cannot be read", "source", kind=DataError):
        info = path.stat()
        if info.st_size > MOST_BYTES:
            raise DataError(
                f"{shown(path)} is larger than {MOST_BYTES >> 20} MiB", "source", "use a smaller image"
            )
        return _digest(path, info.st_size, info.st_mtime_ns)


@lru_cache(maxsize=4096)
def _digest(path: Path, _size: int, _changed: int) -> str:
    """Cached, because a window asks often."""
    if path.suffix.lower() not in IMAGE_EXTENSIONS or read_metadata(path, sidecar=False).width < 1:
        raise DataError(f"the source {shown(path)} is not an image", "source", "choose an image file")
    return file_sha256(path)
