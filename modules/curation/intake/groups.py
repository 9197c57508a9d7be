"""Groups images by prompt, shape and, for edits, source images. Groups are yielded while the scan is still
running.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from modules.curation.ImageGroup import ImageGroup, Stamp
from modules.curation.intake.duplicates import HashCache, without_duplicates
from modules.curation.intake.edit_sources import NO_EDITS, EditOptions, SourceFinder
from modules.curation.intake.scan import FoundImage, ScanFault, output_folders, scan_images
from modules.util.bucket import aspect_label
from modules.util.image_metadata.limits import Reason, Unusable
from modules.util.image_metadata_util import ImageMetadata, normalise_prompt, read_metadata
from modules.util.pairs.source_files import SourceImage
from modules.util.rng import digest64

_FIRST_AFTER_S = 0.4
_FIRST_AT_LATEST_S = 0.8
_ANOTHER_AFTER_S = 2.0
_AGAIN_AFTER_S = 0.1
_QUIET = 256
Finished = Callable[[str, Sequence[str]], bool]
"""Tells whether a group is done, by its key and the names of its images."""
_label = lru_cache(maxsize=4096)(aspect_label)


@dataclass(frozen=True)
class ScanOptions:
    """Options of a scan.

    Args:
        seed: seed of the order of groups.
        near_duplicates: images whose hashes differ in at most this many of 64 bits count as one; the newest
            stays; ``None`` keeps all and decodes nothing.
        stealth: look for text hidden in the pixels if there is no other; slow.
        edits: which images are edits, and where their sources are.
    """

    seed: int = 42
    near_duplicates: int | None = 2
    recursive: bool = True
    stealth: bool = False
    edits: EditOptions = NO_EDITS


def group_key(prompt: str, aspectratio: str, sources: Sequence[str] = ()) -> str:
    """The stable name of the group of a normalised prompt and an aspect bucket. Edits of different sources,
    by the hashes of their bytes, are separate groups.
    """
    parts = "\0".join((prompt, aspectratio, *sources))
    return hashlib.blake2b(parts.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def key_of(about: ImageMetadata, sources: Sequence[SourceImage] = ()) -> str:
    """The key of the group of an image with a prompt."""
    return group_key(*describe_group(about), [source.sha256 for source in sources])


def describe_group(about: ImageMetadata) -> tuple[str, str]:
    """(normalised prompt, aspect bucket) of an image with a prompt. The shape is that of the pixels."""
    return normalise_prompt(about.prompt or ""), _label(*about.seen_size)


def scan_groups(
    source: Path,
    output: Path,
    options: ScanOptions,
    finished: Finished = lambda key, names: False,
    stopped: Callable[[], bool] = lambda: False,
    cache: HashCache | None = None,
    counted: Callable[[int], None] | None = None,
    takes: Callable[[str], bool] = lambda name: True,
) -> Iterator[ImageGroup | ScanFault]:
    """Yield groups of at least two images, and the files that are in none.

    Faults are yielded as they are found. The first group comes within a second, however large the folder is,
    another every two seconds during the scan, and the rest at its end in a seeded order. An early group is
    yielded again under the same key if more of its images are found. Only yielded groups that are not
    finished are searched for duplicates, so that a caller limits the decoding by pulling no more than it
    needs.

    Args:
        source: folder with images.
        output: output folder of the pairs; excluded from the scan.
        options: what to group.
        finished: tells which groups are done, by key and names; these are yielded without decoding anything.
        stopped: called regularly; returns whether to end the scan.
        cache: hashes of earlier scans.
        counted: called once all files were seen, with the number of groups of two or more images.
        takes: returns whether a file, by its name relative to ``source``, counts; called once per file.

    Raises:
        UserError: ``source`` is unreadable.
    """
    start = time.monotonic()
    early, latest = start + _FIRST_AFTER_S, 0.0
    finder = SourceFinder(source, options.edits)
    board = _Board(source, options, finished, cache, finder)
    without = [*output_folders(source, output), *finder.folders()]
    for found in scan_images(source, without, options.recursive, options.stealth, stopped):
        name = _name_in(source, found.path) if isinstance(found, ScanFault) else found.name
        if not finder.is_source(name) and takes(name):
            fault = found if isinstance(found, ScanFault) else board.add(found)
            if fault is not None:
                yield fault
        if (now := time.monotonic()) >= early:
            latest = latest or max(start + _FIRST_AT_LATEST_S, now + _AGAIN_AFTER_S)
            key = board.likely_complete(0 if now >= latest else _QUIET)
            if key is None:
                early = now + _AGAIN_AFTER_S
                continue
            yield from board.hand_out(key)
            early = time.monotonic() + _ANOTHER_AFTER_S
    if counted is not None and not stopped():
        counted(board.count())
    for key in board.remaining():
        if stopped():
            return
        yield from board.hand_out(key)


def _name_in(source: Path, path: Path) -> str:
    return path.relative_to(source).as_posix() if path.is_relative_to(source) else str(path)


class _Members:
    __slots__ = ("given", "last", "names", "sources", "stamps")

    def __init__(self, sources: tuple[SourceImage, ...]) -> None:
        self.sources = sources
        self.names: list[str] = []
        self.stamps: list[Stamp] = []
        self.last = 0
        self.given = 0


class _Board:
    """Names by group. Prompts are read again rather than stored, so that memory depends only on the number of
    files.
    """

    def __init__(
        self,
        source: Path,
        options: ScanOptions,
        finished: Finished,
        cache: HashCache | None,
        finder: SourceFinder,
    ) -> None:
        self._source = source
        self._options = options
        self._finished = finished
        self._cache = cache
        self._finder = finder
        self._groups: dict[str, _Members] = {}
        self._count = 0

    def add(self, found: FoundImage) -> ScanFault | None:
        """Add an image to its group. Returns a fault if it is an edit that cannot be compared."""
        try:
            sources = self._finder.find(found.name, found.about)
        except Unusable as error:
            return fault_of_edit(self._source / found.name, found.about, error)
        key = key_of(found.about, sources)
        members = self._groups.get(key)
        if members is None:
            members = self._groups[key] = _Members(sources)
        members.names.append(found.name)
        members.stamps.append(found.stamp)
        self._count += 1
        members.last = self._count
        return None

    def likely_complete(self, quiet: int) -> str | None:
        """The group of two or more that has gone longest without a new image, for at least ``quiet`` images."""
        open_keys = [
            key
            for key, members in self._groups.items()
            if len(members.names) > 1 and not members.given and not self._finished(key, members.names)
        ]
        key = min(open_keys, key=lambda key: self._groups[key].last, default=None)
        return key if key is not None and self._count - self._groups[key].last >= quiet else None

    def count(self) -> int:
        """Number of groups with two images or more."""
        return sum(len(members.names) > 1 for members in self._groups.values())

    def remaining(self) -> list[str]:
        """Groups not yielded yet, or grown since, in a seeded order."""
        keys = [key for key, m in self._groups.items() if len(m.names) > max(1, m.given)]
        return sorted(keys, key=lambda key: digest64("groups", self._options.seed, key))

    def hand_out(self, key: str) -> Iterator[ImageGroup | ScanFault]:
        members = self._groups[key]
        names = members.names
        members.given = len(names)
        described = self._describe(key, names)
        if described is None:
            yield ScanFault(self._source / names[0], Reason.CHANGED.value)
            return
        group = ImageGroup(
            key, *described, self._source, tuple(names), tuple(members.stamps), members.sources
        )
        if self._options.near_duplicates is None:
            yield group
            return
        decode = not self._finished(key, names)
        kept, left_out = without_duplicates(group, self._options.near_duplicates, self._cache, decode)
        for name, reason in left_out:
            yield ScanFault(self._source / name, reason)
        if len(kept.files) > 1:
            yield kept

    def _describe(self, key: str, names: list[str]) -> tuple[str, str] | None:
        for name in names:
            about = read_metadata(self._source / name, stealth=self._options.stealth)
            if about.prompt is None:
                continue
            with suppress(Unusable):  # its source has disappeared since; another image may tell
                if key_of(about, self._finder.find(name, about)) == key:
                    return describe_group(about)
        return None


def fault_of_edit(path: Path, about: ImageMetadata, error: Unusable) -> ScanFault:
    """The fault of a skipped edit. It counts as one without a source if that is the reason."""
    missing = error.reason is Reason.NO_SOURCE
    return ScanFault(path, str(error), normalise_prompt(about.prompt or "") if missing else "")
