"""Statistics of a folder of images, from names and headers alone. No Tk here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from modules.curation.intake.image_size import image_size
from modules.tools.dataset.files import MASKS
from modules.ui.texts import data as words
from modules.util.bucket import aspect_label
from modules.util.display import counted
from modules.util.errors import DataError, UserError
from modules.util.pairs.dpo_pair_files import IMAGE_EXTENSIONS

MAX_HEADERS = 2000


@dataclass
class FolderStats:
    """Statistics of a folder.

    Args:
        images: number of images.
        captions: number of images with a text file that is not empty.
        bytes: total size of all images.
        smallest, largest: (width, height) by area, among those whose headers were read.
        aspects: number of images of each nominal aspect ratio.
        unreadable: names of images with an unreadable header.
        first: the first images, for a preview.
    """

    images: int = 0
    captions: int = 0
    bytes: int = 0
    smallest: tuple[int, int] | None = None
    largest: tuple[int, int] | None = None
    aspects: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)
    first: list[Path] = field(default_factory=list)


def image_files(folder: Path, subfolders: bool) -> Iterator[Path]:
    """The images of a concept, excluding masks."""
    for path in sorted(folder.rglob("*") if subfolders else folder.iterdir()):
        if (
            path.suffix.lower() in IMAGE_EXTENSIONS
            and not path.stem.lower().endswith(MASKS)
            and path.is_file()
        ):
            yield path


def count_images(folder: str, subfolders: bool) -> int | None:
    """Number of images; ``None`` if the folder does not exist."""
    path = Path(folder)
    if not folder or not path.is_dir():
        return None
    try:
        return sum(1 for _ in image_files(path, subfolders))
    except OSError:
        return None


def folder_stats(folder: str, subfolders: bool, extension: str = ".txt") -> FolderStats:
    """Read all names and up to ``MAX_HEADERS`` headers.

    Raises:
        UserError: the folder does not exist.
    """
    path = Path(folder)
    if not folder or not path.is_dir():
        raise UserError(
            f"the folder {folder or '(none)'} does not exist", "path", "choose the folder of the images"
        )
    stats = FolderStats()
    for image in image_files(path, subfolders):
        stats.images += 1
        stats.bytes += image.stat().st_size
        caption = image.with_suffix(extension)
        stats.captions += caption.is_file() and caption.stat().st_size > 0
        if len(stats.first) < 60:
            stats.first.append(image)
        if stats.images <= MAX_HEADERS:
            _look_into(image, stats)
    return stats


def _look_into(image: Path, stats: FolderStats) -> None:
    try:
        size = image_size(image)
    except DataError:
        stats.unreadable.append(image.name)
        return
    stats.aspects[aspect_label(*size)] += 1
    area = size[0] * size[1]
    if stats.smallest is None or area < stats.smallest[0] * stats.smallest[1]:
        stats.smallest = size
    if stats.largest is None or area > stats.largest[0] * stats.largest[1]:
        stats.largest = size


def stats_lines(stats: FolderStats) -> list[str]:
    """The counts in words."""
    missing = stats.images - stats.captions
    captions = words.CAPTIONS_SOME if missing else words.CAPTIONS
    lines = [
        words.FOLDER_HOLDS.format(images=counted(stats.images, words.IMAGE), size=stats.bytes / 2**20),
        captions.format(
            captions=counted(stats.captions, words.CAPTION), images=counted(missing, words.IMAGE)
        ),
    ]
    if stats.smallest and stats.largest:
        small, large = ("{} \u00d7 {}".format(*size) for size in (stats.smallest, stats.largest))
        lines.append(words.SIZES.format(smallest=small, largest=large))
    if stats.aspects:
        shapes = ", ".join(f"{name} ({count})" for name, count in stats.aspects.most_common(12))
        lines.append(words.SHAPES.format(shapes=shapes))
    if stats.unreadable:
        names = ", ".join(stats.unreadable[:8])
        unreadable = counted(len(stats.unreadable), words.IMAGE)
        lines.append(words.CANNOT_BE_READ.format(images=unreadable, names=names))
    return lines
