"""The images of a folder, each with its captions, masks and other files of the same name."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.curation.intake.edit_sources import ENDINGS
from modules.util.errors import DataError, list_offenders
from modules.util.image_metadata.reader import SWARM
from modules.util.jsonio import read_bytes
from modules.util.owned_files import shown
from modules.util.pairs.dpo_pair_files import IMAGE_EXTENSIONS

MASKS = ("-masklabel", "-condlabel")
CAPTIONS = (".txt", ".caption")
MAX_CAPTION = 1 << 20
_SOURCE = re.compile(rf"(.+)(?:{'|'.join(map(re.escape, ENDINGS))})(?:\.[2-9])?", re.DOTALL)


@dataclass(frozen=True)
class DataImage:
    """An image of a folder; names are relative to it, with ``/``.

    Args:
        masks: images of its name with ``-masklabel`` or ``-condlabel``.
        others: captions and other files of its name, also those named after its whole name: ``a.png.xmp``.
    """

    name: str
    masks: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """The name without its extension."""
        return _stem(self.name)

    @property
    def all(self) -> tuple[str, ...]:
        """All its files."""
        return (self.name, *self.masks, *self.others)

    def caption(self) -> str | None:
        """The name of its caption, if it has one: ``.txt``, which training reads by default, takes precedence
        over ``.caption``.
        """
        own = [name for name in self.others if _stem(name) == self.stem]
        found = (name for end in CAPTIONS for name in own if name.lower().endswith(end))
        return next(found, None)


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts 2 before 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name.lower())]


def find_images(root: Path, subfolders: bool) -> list[DataImage]:
    """The images of a folder in natural order. Hidden folders and links to folders are skipped.

    Raises:
        DataError: the folder does not exist, or names in it are not UTF-8.
    """
    if not root.is_dir():
        raise DataError(f"the folder {root} does not exist", hint="check the path")
    found: list[DataImage] = []
    for names in _files_of(root, subfolders):
        found += _images_of(names)
    check_utf8(name for image in found for name in image.all)
    return sorted(found, key=lambda image: natural(image.name))


def images_after(root: Path, subfolders: bool, names: Mapping[str, str]) -> list[DataImage]:
    """The images of a folder as they would be once files have other names.

    Args:
        names: old to new name of every renamed file.
    """
    found: list[DataImage] = []
    for files in _files_of(root, subfolders):
        found += _images_of(list({names.get(name, name) for name in files}))
    return found


def caption_text(root: Path, image: DataImage) -> str | None:
    """Read its caption, at most 1 MiB; ``None`` if it has no file.

    Raises:
        DataError: the caption is unreadable or larger.
    """
    name = image.caption()
    if name is None:
        return None
    return read_bytes(root / name, "caption", MAX_CAPTION).decode("utf-8-sig", "replace")


def check_utf8(names: Iterable[str]) -> None:
    """Refuse names that can be neither printed nor recorded in a journal.

    Raises:
        DataError: there are such names.
    """
    listed = list(names)
    try:
        "".join(listed).encode("utf-8")
    except UnicodeEncodeError:
        faults = [name for name in listed if any("\ud800" <= sign <= "\udfff" for sign in name)]
        raise DataError(
            f"names are not UTF-8:\n{list_offenders([shown(name) for name in faults])}",
            hint="give these files or their folders other names",
        ) from None


def _files_of(root: Path, subfolders: bool) -> Iterator[list[str]]:
    """Yield the names of the files of each folder, except hidden ones.

    Tens of thousands of files are common, so names are strings here, and files are not accessed individually.
    """
    waiting = [""]
    while waiting:
        place = waiting.pop()
        folders, files = [], []
        try:
            with os.scandir(root / place) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(f"{place}{entry.name}/")
                    elif entry.is_file(follow_symlinks=False) or Path(entry.path).is_file():
                        files.append(f"{place}{entry.name}")
        except PermissionError as error:
            if not place:
                raise DataError(f"the folder {root} cannot be read: {error.strerror}") from error
        yield files
        waiting += folders if subfolders else []


def _stem(name: str) -> str:
    """The name without folders and extension."""
    end = _suffix(name)
    return name[: len(name) - len(end)]


def _suffix(name: str) -> str:
    """As ``Path.suffix``, but faster, because it is called thousands of times."""
    last = name.rpartition("/")[2]
    dot = last.rfind(".")
    return last[dot:] if 0 < dot < len(last) - 1 else ""


def _is_image(name: str) -> bool:
    return _suffix(name).lower() in IMAGE_EXTENSIONS


def _owner(name: str) -> str:
    """The stem of the image that a file belongs to."""
    stem = name[: -len(SWARM)] if name.lower().endswith(SWARM) else _stem(name)
    mask = next((ending for ending in MASKS if stem.lower().endswith(ending)), "")
    return stem[: len(stem) - len(mask)] if _is_image(name) and mask else stem


def _images_of(names: list[str]) -> list[DataImage]:
    belonging: dict[str, list[str]] = defaultdict(list)
    there = set(names)
    for name in sorted(names):
        image = _stem(name)
        # other programs name their files after the whole name of an image: a.png.xmp
        whole = image in there and _is_image(image) and not _is_image(name)
        belonging[image if whole else _owner(name)].append(name)
    made = []
    for stem, files in belonging.items():
        pictures = [name for name in files if _is_image(name)]
        images = [name for name in pictures if _stem(name) == stem]
        masks = tuple(name for name in pictures if name not in images)
        others = tuple(name for name in files if name not in pictures)
        for name in images:
            after = (other for other in belonging.get(name, ()) if not _is_image(other))
            made.append(DataImage(name, masks, (*others, *after)))
    return made


def sources_of_edits(images: Sequence[DataImage]) -> dict[str, str]:
    """The sources of edits, ``cat-source.png`` and ``cat-source.2.png``, each with the stem of its result. If the
    result is the source of another edit, that is the stem of the last result.
    """
    stems = {image.stem for image in images}
    matches = {stem: _SOURCE.fullmatch(stem) for stem in stems}
    results = {stem: match[1] for stem, match in matches.items() if match and match[1] in stems}
    found = {image.name: results[image.stem] for image in images if image.stem in results}
    for name, result in found.items():
        while result in results:
            result = results[result]
        found[name] = result
    return found


def shared_files(images: list[DataImage]) -> list[str]:
    """Captions and masks that belong to several images, with these images: ``a.txt (a.jpg, a.png)``."""
    users: dict[str, list[str]] = defaultdict(list)
    for image in images:
        for name in (*image.masks, *image.others):
            users[name].append(image.name)
    return [f"{name} ({', '.join(names)})" for name, names in users.items() if len(names) > 1]


def links_to(root: Path, images: Iterable[DataImage], gone: Collection[str]) -> dict[str, str]:
    """Links among the files of images that lead to one of the files ``gone``, each with that file."""
    real = Path(os.path.realpath(root))
    found: dict[str, str] = {}
    for name in dict.fromkeys(name for image in images for name in image.all):
        path = root / name
        if not path.is_symlink():
            continue
        # the next file, which may be a link too, and the last one
        for target in (Path(os.path.realpath(path.parent), path.readlink()), path.resolve()):
            inside = Path(os.path.normpath(target))
            if inside.is_relative_to(real) and (there := inside.relative_to(real).as_posix()) in gone:
                found[name] = there
    return found


def check_links(root: Path, images: Iterable[DataImage], gone: Collection[str]) -> None:
    """Refuse to give files other names while links lead to them.

    Raises:
        DataError: there are such links.
    """
    found = [f"{name} -> {target}" for name, target in links_to(root, images, gone).items()]
    if found:
        raise DataError(
            f"links would lead nowhere, because their files get other names:\n{list_offenders(found)}",
            hint="replace these links by copies of their files, or remove them",
        )
