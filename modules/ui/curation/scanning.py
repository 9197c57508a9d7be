"""From a folder to groups of images with the same prompt and shape."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from modules.curation.session import ImageGroup
from modules.util.bucket import aspect_label
from modules.util.dpo_curation_util import IMAGE_EXTENSIONS, read_caption
from modules.util.rng import digest64


@dataclass(frozen=True)
class ScanFault:
    """A file that is left out, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class ScanOptions:
    """How to group.

    Args:
        seed: of the order of the groups.
        near_duplicates: images whose hashes differ in at most so many bits count as one; ``None`` keeps all.
    """

    seed: int = 42
    near_duplicates: int | None = 2


def scan_groups(
    source: Path,
    output: Path,
    options: ScanOptions,
    finished: Collection[str],
    stopped: Callable[[], bool],
) -> Iterator[ImageGroup | ScanFault]:
    """Groups of at least two images in a seeded order, and the files that are in none."""
    members: dict[tuple[str, str], list[str]] = {}
    for folder, names, files in os.walk(source):
        here = Path(folder)
        names[:] = sorted(n for n in names if not n.startswith(".") and (here / n).resolve() != output)
        for name in sorted(files):
            if stopped():
                return
            path = here / name
            if path.suffix.lower() not in IMAGE_EXTENSIONS:
                continue
            try:
                with Image.open(path) as image:
                    size, text = image.size, str(image.info.get("parameters", ""))
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                yield ScanFault(path, str(error))
                continue
            prompt = " ".join((text.split("\n")[0] or read_caption(path) or "").split()) or "UNCONDITIONAL"
            members.setdefault((prompt, aspect_label(*size)), []).append(path.relative_to(source).as_posix())
    order = sorted(members, key=lambda k: digest64("groups", options.seed, *k))
    for prompt, aspect in order:
        files = members[prompt, aspect]
        if len(files) > 1:
            yield ImageGroup(f"{prompt}\n{aspect}", prompt, aspect, source, tuple(files))


def image_distance(first: Path, second: Path) -> float:
    """How different two images look: bits that differ in their 64-bit difference hashes."""
    return float((_dhash(first) ^ _dhash(second)).bit_count())


def _dhash(path: Path) -> int:
    with Image.open(path) as image:
        image.draft("L", (9, 8))
        small = image.convert("L").resize((9, 8), Image.Resampling.BOX)
    values = list(small.getdata())
    bits = 0
    for row in range(8):
        for column in range(8):
            bits = bits << 1 | (values[row * 9 + column] > values[row * 9 + column + 1])
    return bits
