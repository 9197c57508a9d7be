"""Streams the image files of a folder with their metadata in natural order.

Nothing in the folder stops the scan: unusable files are yielded as ``ScanFault`` with one of the listed
reasons. Memory holds the names of one folder at a time. Links to folders are not followed, so that there are
no infinite paths.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from modules.curation.ImageGroup import Stamp
from modules.curation.store import STORE_NAME
from modules.util.dpo_curation_util import IMAGE_EXTENSIONS, MANIFEST_NAME, SIDES
from modules.util.errors import refused_as
from modules.util.image_metadata.containers.source import unusable
from modules.util.image_metadata.limits import Reason, Unusable
from modules.util.image_metadata_util import ImageMetadata, read_metadata
from modules.util.pairs.dpo_pair_files import SOURCE_FOLDER

_DIGITS = re.compile("([0-9]+)")
OTHER_KINDS = frozenset(
    (
        *(
            ".gif",
            ".apng",
            ".heic",
            ".heif",
            ".hif",
            ".svg",
            ".psd",
            ".xcf",
            ".kra",
            ".ico",
            ".jp2",
            ".j2k",
            ".tga",
        ),
        *(
            ".exr",
            ".hdr",
            ".dng",
            ".cr2",
            ".cr3",
            ".nef",
            ".arw",
            ".raf",
            ".orf",
            ".rw2",
            ".ppm",
            ".pgm",
            ".qoi",
        ),
        *(".mp4", ".m4v", ".webm", ".mov", ".mkv", ".avi", ".mpg", ".mpeg", ".wmv"),
    )
)
"""Extensions of images and videos that are not read. They are reported, so that nobody looks for them in vain."""


@dataclass(frozen=True, slots=True)
class ScanFault:
    """A skipped file or folder, with the reason.

    Args:
        instruction: instruction of an edit whose source image is missing.
    """

    path: Path
    reason: str
    instruction: str = ""


def edits_without_source(faults: Iterable[ScanFault]) -> dict[str, int]:
    """Instructions of edits that were skipped because their source images are missing, with the number of images."""
    return dict(Counter(fault.instruction for fault in faults if fault.instruction))


class ImageFile(NamedTuple):
    """An image file by name, not read yet.

    Args:
        name: relative to the folder, with ``/`` separators.
        path: path to open it.
        regular: whether it is known to be a regular file rather than a link.
    """

    name: str
    path: str
    regular: bool


class FoundImage(NamedTuple):
    """An image with a prompt.

    Args:
        stamp: stamp of the file before it was read.
    """

    name: str
    about: ImageMetadata
    stamp: Stamp


def natural_key(name: str) -> str:
    """A key that sorts names naturally: ``2.png`` before ``10.png``, ignoring case."""
    parts = _DIGITS.split(name.casefold())
    for i in range(1, len(parts), 2):
        number = parts[i].lstrip("0")
        parts[i] = f"{len(number):03}{number}"
    return "".join(parts) + "\0" + name


def _never() -> bool:
    return False


def walk_images(
    root: Path, exclude: Collection[Path] = (), recursive: bool = True, stopped: Callable[[], bool] = _never
) -> Iterator[ImageFile | ScanFault]:
    """Yield image files below ``root``: those of a folder in natural order, then its subfolders in the same
    order.

    A folder in which pairs were picked is skipped, because its images are copies. Names that start with a dot
    are skipped, and so are files without an image extension. Unsupported image and video types are faults.

    Args:
        exclude: folders to skip.
        stopped: called regularly; returns whether to end the walk.

    Raises:
        UserError: ``root`` is not a readable folder.
    """
    with (
        refused_as(f"the folder {root} cannot be read", hint="choose a folder with images"),
        os.scandir(root),
    ):
        pass
    seen = {identity for path in exclude if (identity := _identity(str(path)))}
    seen.discard(_identity(str(root)))
    folders = [("", str(root))]
    while folders and not stopped():
        prefix, path = folders.pop()
        identity = _identity(path)
        if identity in seen:
            continue
        if identity is not None:
            seen.add(identity)
        try:
            listing = _list_folder(path)
        except OSError as error:
            yield ScanFault(Path(path), str(unusable(error)))
            continue
        if prefix and listing.holds_pairs():
            yield ScanFault(Path(path), Reason.PAIRS_FOLDER.value)
            continue
        for name, reason in listing.faults:
            yield ScanFault(Path(path, name), reason.value)
        listing.files.sort(key=natural_key)
        for name in listing.files:
            if stopped():
                return
            yield ImageFile(prefix + name, os.path.join(path, name), name not in listing.links)  # noqa: PTH118
        if recursive:
            listing.folders.sort(key=natural_key, reverse=True)
            folders += [(f"{prefix}{n}/", os.path.join(path, n)) for n in listing.folders]  # noqa: PTH118


def _identity(path: str) -> tuple[int, int] | None:
    try:
        info = os.stat(path)  # noqa: PTH116 - as fast as it gets
    except (OSError, ValueError):
        return None
    return info.st_dev, info.st_ino


class _Listing:
    def __init__(self) -> None:
        self.files: list[str] = []
        self.folders: list[str] = []
        self.links: set[str] = set()
        self.faults: list[tuple[str, Reason]] = []
        self.marks: set[str] = set()

    def holds_pairs(self) -> bool:
        """Return whether these are the files of a picking session. A manifest.json alone proves nothing."""
        sides = any(side in self.folders for side in SIDES)
        return STORE_NAME in self.marks or (MANIFEST_NAME in self.marks and sides)


def _list_folder(path: str) -> _Listing:
    listing = _Listing()
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name
            if name[0] == ".":
                continue
            if name in (MANIFEST_NAME, STORE_NAME):
                listing.marks.add(name)
            extension = name[name.rfind(".") :].lower()
            is_image = extension in IMAGE_EXTENSIONS
            try:
                if not entry.is_file(follow_symlinks=False):
                    _sort_odd(entry, is_image, listing)
                elif is_image:
                    if name.isascii() or _is_text(name):
                        listing.files.append(name)
                    else:
                        listing.faults.append((name, Reason.BAD_NAME))
                elif extension in OTHER_KINDS:
                    listing.faults.append((name, Reason.OTHER_KIND))
            except OSError as error:
                listing.faults.append((name, unusable(error).reason))
    return listing


def _is_text(name: str) -> bool:
    """Return whether a name can be encoded as text. Names in an unknown encoding cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _sort_odd(entry: os.DirEntry[str], is_image: bool, listing: _Listing) -> None:
    """Sort out folders, links and pipes."""
    name = entry.name
    is_folder = entry.is_dir()
    if not is_folder and not is_image:
        return
    if not _is_text(name):
        listing.faults.append((name, Reason.BAD_NAME))
    elif entry.is_symlink():
        if is_folder:
            listing.faults.append((name, Reason.FOLDER_LINK))
        else:
            listing.files.append(name)
            listing.links.add(name)
    elif is_folder:
        listing.folders.append(name)
    else:
        listing.faults.append((name, Reason.NOT_A_FILE))


def scan_images(
    root: Path,
    exclude: Collection[Path] = (),
    recursive: bool = True,
    stealth: bool = False,
    stopped: Callable[[], bool] = _never,
) -> Iterator[FoundImage | ScanFault]:
    """Yield every image with a prompt below ``root``, and a fault for every image without.

    Args:
        root, exclude, recursive, stopped: as for ``walk_images``.
        stealth: look for text hidden in the pixels if there is no other; slow.
    """
    for found in walk_images(root, exclude, recursive, stopped):
        if isinstance(found, ScanFault):
            yield found
            continue
        try:
            info = os.stat(found.path)  # noqa: PTH116 - as fast as it gets
        except OSError as error:
            yield ScanFault(Path(found.path), str(unusable(error)))
            continue
        about = read_metadata(found.path, known_regular=found.regular, stealth=stealth)
        if about.prompt is None:
            yield ScanFault(Path(found.path), about.error or Unusable(Reason.NO_PROMPT).reason.value)
        else:
            yield FoundImage(found.name, about, (info.st_size, info.st_mtime_ns))


def output_folders(source: Path, output: Path) -> list[Path]:
    """Folders to exclude from a scan of ``source`` because pairs are written there."""
    inside = [output / name for name in (*SIDES, SOURCE_FOLDER)]
    return [output] if output.resolve() != source.resolve() else inside
