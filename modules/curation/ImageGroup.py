"""The images of one prompt and one shape."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from modules.util.pairs.source_files import SourceImage

Stamp = tuple[int, int]
"""Size in bytes and modification time in nanoseconds."""


@dataclass(frozen=True)
class ImageGroup:
    """Images that may be compared with each other.

    Args:
        key: stable name of the group.
        prompt: normalised prompt, the caption of its pairs.
        aspectratio: name of the aspect bucket.
        root: the source folder.
        files: image paths relative to ``root``, with ``/`` separators.
        stamps: stamp of each file when its prompt was read; empty if unknown.
        sources: the images that all of these are edits of; empty if they are not edits.
    """

    key: str
    prompt: str
    aspectratio: str
    root: Path
    files: tuple[str, ...]
    stamps: tuple[Stamp, ...] = ()
    sources: tuple[SourceImage, ...] = ()

    def path(self, index: int) -> Path:
        """Absolute path of one image."""
        return self.root / self.files[index]

    def is_intact(self, index: int) -> bool:
        """Return whether the file still has the size and modification time it had when its prompt was read.
        """
        try:
            info = self.path(index).stat()
        except OSError:
            return False
        return not self.stamps or self.stamps[index] == (info.st_size, info.st_mtime_ns)

    def has_its_folder(self) -> bool:
        """Return whether the source folder can be listed and holds something. A drive that was unplugged leaves no
        folder, an empty one, or one that cannot be read.
        """
        try:
            with os.scandir(self.root) as entries:
                return next(entries, None) is not None
        except OSError:
            return False

    def missing_source_folder(self) -> Path | None:
        """A folder of sources that is missing or cannot be read, as when its drive was unplugged. An empty one may
        have lost just its only source.
        """
        for folder in dict.fromkeys(source.path.parent for source in self.sources):
            try:
                os.scandir(folder).close()
            except OSError:
                return folder
        return None

    def without(self, names: Collection[str]) -> ImageGroup:
        """The group with these files left out."""
        if not names:
            return self
        kept = [i for i, name in enumerate(self.files) if name not in names]
        return replace(
            self,
            files=tuple(self.files[i] for i in kept),
            stamps=tuple(self.stamps[i] for i in kept) if self.stamps else (),
        )
