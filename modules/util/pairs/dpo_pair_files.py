"""The files of preference pairs: copying, captions, finding, and listing a finalised folder.

Images are copied byte for byte under their own extension. Every file appears under its final name complete
or not at all.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from modules.util.errors import DataError, UserError
from modules.util.image_metadata.normalise import UNCONDITIONAL
from modules.util.owned_files import Owned, shown

IMAGE_EXTENSIONS = frozenset(
    {".png", ".jpg", ".jpeg", ".jfif", ".webp", ".avif", ".bmp", ".jxl", ".tif", ".tiff"}
)
_ENDINGS = tuple(ending for name in sorted(IMAGE_EXTENSIONS) for ending in (name, name.upper()))
SIDES = ("chosen", "rejected")
SPLITS = ("train", "val")
PLACES = (*SPLITS, "")
"""Places of the images of a side: in a finalised subfolder, or directly in the side's folder."""
SOURCE_FOLDER = "source"
"""The source images of edits, named like their pairs, for train and val alike."""
TRASH_NAME = ".trash"
Pair = dict[str, Any]
SAFE_PAIR_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-]{0,63}")


def dpo_pair_key(path: str | os.PathLike[str], root: str | os.PathLike[str]) -> str:
    """The key that matches chosen to rejected: the path below ``root`` with ``/`` separators, without extension."""
    return key_of_relative(os.path.relpath(os.fspath(path), os.fspath(root)))


def key_of_relative(relative: str) -> str:
    """As ``dpo_pair_key``, for a path that is already relative to the root."""
    relative = relative.replace("\\", "/")
    stem, dot, extension = relative.rpartition(".")
    return stem if dot and "/" not in extension and stem else relative


def owned_pairs(output_dir: str | os.PathLike[str]) -> Owned:
    """Open a folder of pairs for changes.

    Raises:
        UserError: one of its folders is a link, so that files moved or removed there might be elsewhere.
    """
    owned = Owned(output_dir, local=True)
    splits = (f"{side}/{split}" for side in SIDES for split in SPLITS)
    for name in (*SIDES, *splits, SOURCE_FOLDER, TRASH_NAME):
        path = owned.root / name
        if path.is_symlink():
            raise owned.refusal(name, "is a link", Path(os.path.realpath(path)))
    return owned


def copy_image(source: str | os.PathLike[str], target: Path) -> str:
    """Copy bytes to a temporary name, flush and rename. Returns the SHA-256 of the copied bytes.

    Raises:
        UserError: the source is missing or unreadable, or the target disk is full or read-only.
    """
    return copy_into(Owned(target.parent, local=True), source, target.name)


def copy_into(owned: Owned, source: str | os.PathLike[str], name: str) -> str:
    """As ``copy_image``, to a name in a folder.

    Raises:
        UserError: the image cannot be copied. Nothing remains of it.
    """
    digest = hashlib.sha256()
    try:
        with (
            Path(source).open("rb") as reader,
            owned.write(name) as temporary,
            temporary.open("wb") as writer,
        ):
            while block := reader.read(1 << 20):
                digest.update(block)
                writer.write(block)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"cannot copy {shown(source)} to {shown(owned.root / name)}: {reason}",
            hint="nothing was changed; try again",
        ) from error
    return digest.hexdigest()


def caption_of(prompt: str) -> str:
    """The caption for a prompt, on one line; empty for ``UNCONDITIONAL``, which trains the empty prompt."""
    caption = " ".join(prompt.split())
    return "" if caption == UNCONDITIONAL else caption


def write_caption(owned: Owned, name: str, prompt: str) -> None:
    """Write the caption of ``prompt`` next to the image of a name. Without a prompt, the file is empty."""
    caption = caption_of(prompt)
    with owned.write(caption_name(name)) as temporary:
        temporary.write_bytes(f"{caption}\n".encode() if caption else b"")


def caption_name(image: str) -> str:
    """The caption file name of an image."""
    return PurePosixPath(image).with_suffix(".txt").as_posix()


def find_exported_file(output_dir: str | os.PathLike[str], side: str, pair_id: str) -> Path | None:
    """Find the image of a pair: in the side's folder while picking, in train or val after finalising."""
    if side not in SIDES:
        raise ValueError(f"side must be one of {SIDES}, not {side!r}")
    if not SAFE_PAIR_ID.fullmatch(pair_id):
        return None
    base = os.path.join(output_dir, side)  # noqa: PTH118 - asked twice at every pick; Path would take milliseconds
    for folder in (base, *(f"{base}{os.sep}{split}" for split in SPLITS)):
        if os.path.isdir(folder):  # noqa: PTH112
            for ending in _ENDINGS:
                path = f"{folder}{os.sep}{pair_id}{ending}"
                if os.path.isfile(path):  # noqa: PTH113
                    return Path(path)
    return None


def name_is_taken(output_dir: str | os.PathLike[str], pair_id: str) -> bool:
    """Return whether the folder already has any image or caption of this name, whoever wrote it."""
    if any(find_exported_file(output_dir, side, pair_id) is not None for side in SIDES):
        return True
    base = Path(output_dir)
    sources = os.path.join(output_dir, SOURCE_FOLDER)  # noqa: PTH118 - as above
    if os.path.isdir(sources):  # noqa: PTH112
        stems = (pair_id, *(f"{pair_id}.{number}" for number in range(2, 10)))
        if any(os.path.lexists(f"{sources}{os.sep}{stem}{end}") for stem in stems for end in _ENDINGS):
            return True
    return any(
        (base / side / place / f"{pair_id}.txt").is_file() for side in SIDES for place in ("", *SPLITS)
    )


def locate_pair_file(output_dir: Path, pair: Pair, side: str) -> Path | None:
    """Find the file of a manifest entry, wherever it was moved."""
    named = output_dir / pair[f"{side}_file"]
    return named if named.is_file() else find_exported_file(output_dir, side, pair["pair_id"])


def image_files(paths: Iterable[Path]) -> list[Path]:
    """Those that are files with the extension of an image, in the same order."""
    return [path for path in paths if path.suffix.lower() in IMAGE_EXTENSIONS and path.is_file()]


def pair_images(base: Path, side: str) -> Iterator[Path]:
    for folder in (base / side, *(base / side / split for split in SPLITS)):
        if folder.is_dir():
            yield from sorted(image_files(folder.iterdir()))


def unlink_with_caption(owned: Owned, image: str) -> bool:
    """Remove an image, by its name in a folder, and its caption. Returns whether either existed."""
    there = owned.remove(image)
    return owned.remove(caption_name(image)) or there


def name_below(output_dir: str | os.PathLike[str], image: Path) -> str:
    """The name of a file in a folder of pairs, with ``/`` separators."""
    return image.relative_to(output_dir).as_posix()


def read_caption(image: Path | None, max_bytes: int = 1 << 20) -> str | None:
    """Read the caption next to an image, stripped; ``None`` if there is none.

    Raises:
        DataError: the caption is too large, or not text.
    """
    if image is None:
        return None
    path = image.with_suffix(".txt")
    try:
        with path.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except FileNotFoundError:
        return None
    if len(data) > max_bytes:
        raise DataError(f"the caption {path} is larger than {max_bytes} bytes")
    try:
        return data.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise DataError(f"the caption {path} is not UTF-8 text (byte {error.start})") from error


def fix_multiline_captions(folder: str | os.PathLike[str]) -> list[Path]:
    """Join every multi-line caption below ``folder`` into one line. Returns the changed files.

    Several lines would mean alternative prompts, so that the sides of a pair could draw different ones.
    """
    changed, owned = [], Owned(folder, local=True)
    for path in sorted(Path(folder).rglob("*.txt")):
        text = read_caption(path.with_suffix(".png"))
        if text is not None and len(text.splitlines()) > 1:
            with owned.write(name_below(folder, path)) as temporary:
                temporary.write_bytes(f"{' '.join(text.split())}\n".encode())
            changed.append(path)
    return changed


@dataclass(frozen=True)
class FinalizedPair:
    """One pair on disk, found by its files alone; ``split`` is empty before finalising."""

    pair_id: str
    split: str
    chosen: Path | None
    rejected: Path | None
    chosen_caption: str | None
    rejected_caption: str | None


def scan_finalized_pairs(output_dir: str | os.PathLike[str]) -> list[FinalizedPair]:
    """All pair names under ``{chosen,rejected}/{train,val}``, complete or not, train first, sorted by name."""
    return scan_pairs(output_dir, SPLITS)


def scan_pairs(output_dir: str | os.PathLike[str], places: Sequence[str] = PLACES) -> list[FinalizedPair]:
    """All pair names in ``places`` below each side, complete or not, in the order of places, then by name."""
    base = Path(output_dir)
    found: list[FinalizedPair] = []
    for split in places:
        images: dict[str, dict[str, Path]] = {}
        for side in SIDES:
            folder = base / side / split
            for path in image_files(sorted(folder.iterdir())) if folder.is_dir() else []:
                images.setdefault(path.stem, {})[side] = path
        for stem in sorted(images):
            chosen, rejected = images[stem].get("chosen"), images[stem].get("rejected")
            found.append(
                FinalizedPair(stem, split, chosen, rejected, read_caption(chosen), read_caption(rejected))
            )
    return found


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Hex SHA-256 of a file's bytes."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Free bytes on the disk of ``path`` (or of its nearest existing parent)."""
    folder = Path(path).absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
