"""Inspects a folder of images: duplicates, and counts of sizes, shapes, captions and tags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from modules.curation.intake.duplicates import Fingerprint, equal_files, fingerprint, near_fingerprints
from modules.curation.intake.image_size import image_size
from modules.tools.dataset.files import DataImage, caption_text, links_to, sources_of_edits
from modules.tools.dataset.tags import tags_of
from modules.tools.Journal import Journal
from modules.util.bucket import aspect_label, bucket_of
from modules.util.errors import DataError
from modules.util.image_metadata.limits import Unusable

LONG_TAG = 60
Tell = Callable[[int, str], None]


class Duplicate(NamedTuple):
    """A duplicate image.

    Args:
        image: the later image.
        original: the earlier image.
        exact: whether the files are equal, byte for byte.
    """

    image: DataImage
    original: str
    exact: bool


def find_duplicates(root: Path, images: list[DataImage], distance: int, progress: Tell) -> list[Duplicate]:
    """Find images that equal an earlier one, byte for byte or visually. Links count as later than files.

    Sources of edits are left alone: several results may have the same one, and a result may equal its own.

    Args:
        distance: maximum number of differing bits (of 64) of their difference hashes.
    """
    sources = sources_of_edits(images)
    images = [image for image in images if image.name not in sources]
    images = sorted(images, key=lambda image: (root / image.name).is_symlink())
    paths = [root / image.name for image in images]
    same = equal_files(paths, [path.stat().st_size for path in paths])
    looks: list[tuple[int, Fingerprint]] = []
    for number, path in enumerate(paths):
        progress(number, path.name)
        if same[number] is None:
            try:
                looks.append((number, fingerprint(path)))
            except Unusable:
                continue  # the statistics list unreadable files
    near = near_fingerprints([look for _, look in looks], distance)
    twins = {looks[i][0]: looks[twin][0] for i, twin in enumerate(near) if twin is not None}
    return [
        Duplicate(images[i], images[twin].name, i not in twins)
        for i in range(len(images))
        for twin in [twins.get(i, same[i])]
        if twin is not None
    ]


def take_out(root: Path, images: list[DataImage], found: list[Duplicate]) -> None:
    """Remove the later of equal images, with captions and masks. ``Journal.undo`` restores them.

    Captions and masks that are shared with a remaining image (``a.txt`` of ``a.jpg`` and ``a.png``) stay, and so do
    files that its links lead to. An edit takes its sources with it.
    """
    out = {one.image.name for one in found}
    stay = {image.stem for image in images if image.name not in out}
    gone = {name for name, result in sources_of_edits(images).items() if result not in stay}
    taken = [image for image in images if image.name in out | gone]
    out |= gone
    rest = [image for image in images if image.name not in out]
    needed = {name for image in rest for name in image.all}
    needed |= {*links_to(root, rest, {name for image in images for name in image.all}).values()}
    with Journal(root).job("duplicates") as job:
        for name in dict.fromkeys(name for one in taken for name in one.all):
            if name not in needed:
                job.keep(name)


def statistics(root: Path, images: list[DataImage], resolution: int, progress: Tell) -> dict[str, Any]:
    """Compute statistics, ready for JSON."""
    sizes: Counter[str] = Counter()
    aspects: Counter[str] = Counter()
    buckets: Counter[str] = Counter()
    tags: Counter[str] = Counter()
    missing, empty, unreadable, small = [], [], [], []
    for number, image in enumerate(images):
        progress(number, image.name)
        try:
            width, height = image_size(root / image.name)
        except DataError:
            unreadable.append(image.name)
        else:
            sizes[f"{width}x{height}"] += 1
            aspects[aspect_label(width, height)] += 1
            high, wide = bucket_of(width, height, resolution)
            buckets[f"{wide}x{high}"] += 1
            if width < wide or height < high:
                small.append(image.name)
        text = caption_text(root, image)
        if text is None:
            missing.append(image.name)
        elif not text.strip():
            empty.append(image.name)
        else:
            tags.update(tag for tag in tags_of(text) if len(tag) <= LONG_TAG)
    return {
        "images": len(images),
        "masks": sum(len(image.masks) for image in images),
        "sizes": dict(sizes.most_common()),
        "aspects": dict(aspects.most_common()),
        "buckets": dict(buckets.most_common()),
        "smaller_than_bucket": small,
        "captions_missing": missing,
        "captions_empty": empty,
        "tags": dict(sorted(tags.items(), key=lambda one: (-one[1], one[0]))),
        "unreadable": unreadable,
    }
