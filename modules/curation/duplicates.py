"""Images that are the same: byte for byte, or to the eye by a 64-bit difference hash."""

from __future__ import annotations

import logging
import os
import sqlite3
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy
from PIL import Image

from modules.curation.session import ImageGroup
from modules.util.dpo_curation_util import file_sha256
from modules.util.image_metadata.limits import MAX_PIXELS, Reason, Unusable
from modules.util.image_metadata.source import unusable

log = logging.getLogger(__name__)
_GRID = (9, 8)
_DECODE_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    ArithmeticError,
    LookupError,
    TypeError,
    RuntimeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
"""What Pillow raises at damaged files."""
_WORKERS = min(4, os.cpu_count() or 1)


def dhash(image: Image.Image) -> int:
    """The difference hash of a decoded image: is each of 9x8 areas brighter than its right neighbour?

    64 bits row by row, the first one highest.
    """
    grey = numpy.asarray(_shrunk(image))
    return int.from_bytes(numpy.packbits(grey[:, :-1] > grey[:, 1:]).tobytes(), "big")


def _shrunk(image: Image.Image) -> Image.Image:
    """The 9x8 areas in eight bits of grey, over black where they are transparent."""
    if image.mode[:1] in ("I", "F"):
        values = numpy.asarray(image, dtype=numpy.float32)
        image = Image.fromarray(
            (values / 257 if values.size and values.max() > 255 else values).astype(numpy.uint8)
        )
    elif image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        if image.getchannel("A").getextrema() != (255, 255):
            # Colours times opacity are what lies over black.
            small = image.convert("RGBa").resize(_GRID, Image.Resampling.BOX)
            return Image.merge("RGB", small.split()[:3]).convert("L")
    elif image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    return image.convert("L").resize(_GRID, Image.Resampling.BOX)


def file_dhash(path: str | os.PathLike[str]) -> int:
    """Decode an image, as little of it as its format allows, and hash it.

    Raises:
        Unusable: it cannot be opened or decoded, or has too many pixels.
    """
    try:
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise Unusable(Reason.TOO_MANY_PIXELS, f"{image.width}x{image.height}")
            image.draft("L", (_GRID[0] * 8, _GRID[1] * 8))
            return dhash(image)
    except (FileNotFoundError, PermissionError) as error:
        raise unusable(error) from error
    except _DECODE_ERRORS as error:
        raise Unusable(Reason.UNDECODABLE, str(error)) from error


class HashCache:
    """Hashes by path, size and time of change in an SQLite file; losing it costs time and nothing else.

    Args:
        path: the file; made if it is not there. A damaged one is replaced; where none can be kept (no permission,
            another program in it, a full disk), hashes are remembered in memory.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = self._open(path)
        except (OSError, sqlite3.OperationalError) as error:
            self._forget_file(error)

    def _open(self, path: Path) -> sqlite3.Connection:
        try:
            return _connect(str(path))
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            log.warning("%s is damaged and replaced: %s", path, error)
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            return _connect(str(path))

    def _forget_file(self, error: Exception) -> None:
        log.warning("hashes of images are kept in memory only: %s", error)
        self._database = _connect(":memory:")

    def _execute(self, order: str, values: tuple[object, ...]) -> tuple[bytes] | None:
        with self._lock:
            try:
                found: tuple[bytes] | None = self._database.execute(order, values).fetchone()
            except sqlite3.DatabaseError as error:
                self._database.close()
                self._forget_file(error)
                return None
        return found

    def get(self, path: Path, info: os.stat_result) -> int | None:
        """The hash of a file that has not changed since."""
        row = self._execute(
            "SELECT dhash FROM hashes WHERE path = ? AND size = ? AND mtime_ns = ?",
            (str(path), info.st_size, info.st_mtime_ns),
        )
        return None if row is None else int.from_bytes(row[0], "big")

    def put(self, path: Path, info: os.stat_result, value: int) -> None:
        """Remember a hash."""
        self._execute(
            "INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?)",
            (str(path), info.st_size, info.st_mtime_ns, value.to_bytes(8, "big")),
        )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def __enter__(self) -> HashCache:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _connect(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=OFF")
        database.execute(
            "CREATE TABLE IF NOT EXISTS hashes"
            " (path TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER, dhash BLOB) WITHOUT ROWID"
        )
        database.execute("SELECT dhash FROM hashes LIMIT 1").fetchone()
    except sqlite3.DatabaseError:
        database.close()
        raise
    return database


def near_hashes(hashes: Sequence[int], threshold: int) -> list[int | None]:
    """For each hash, in order: the index of the first earlier kept one within ``threshold`` bits, or ``None``: kept.

    So everything that is dropped lies near something that stays.
    """
    values = numpy.array(hashes, dtype=numpy.uint64)
    kept = numpy.empty(len(values), dtype=numpy.int64)
    count = 0
    verdicts: list[int | None] = []
    for i, value in enumerate(values):
        near = numpy.bitwise_count(values[kept[:count]] ^ value) <= threshold
        at = int(near.argmax()) if count and near.any() else -1
        if at >= 0:
            verdicts.append(int(kept[at]))
        else:
            verdicts.append(None)
            kept[count] = i
            count += 1
    return verdicts


def equal_files(paths: Sequence[Path], sizes: Sequence[int]) -> list[int | None]:
    """For each file, in order: the index of the first earlier one with the same bytes, or ``None``.

    Only files of equal size are read. A file that has vanished meanwhile equals nothing.
    """
    often = {size for size, times in Counter(sizes).items() if times > 1}
    first: dict[str, int] = {}
    verdicts: list[int | None] = []
    for i, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        if size not in often:
            verdicts.append(None)
            continue
        try:
            digest = file_sha256(path)
        except OSError:
            verdicts.append(None)
            continue
        verdicts.append(first.get(digest))
        first.setdefault(digest, i)
    return verdicts


def without_duplicates(
    group: ImageGroup, threshold: int, cache: HashCache | None = None
) -> tuple[ImageGroup, list[tuple[str, str]]]:
    """The group with one image of each look, the newest of its kind, and the names left out with their reasons.

    Args:
        group: images of one prompt.
        threshold: hashes that differ in at most so many of 64 bits count as one look.
        cache: hashes of earlier scans.
    """
    left_out: dict[str, str] = {}
    newest_first: list[tuple[str, os.stat_result]] = []
    for name in group.files:
        try:
            newest_first.append((name, (group.root / name).stat()))
        except OSError as error:
            left_out[name] = str(unusable(error))
    newest_first.sort(key=lambda entry: -entry[1].st_mtime_ns)
    names = [name for name, _ in newest_first]
    same = equal_files([group.root / n for n in names], [info.st_size for _, info in newest_first])
    for name, twin in zip(names, same, strict=True):
        if twin is not None:
            left_out[name] = f"{Reason.DUPLICATE.value} {names[twin]}"
    todo = [entry for entry in newest_first if entry[0] not in left_out]
    looked: list[tuple[str, int]] = []

    def hash_one(entry: tuple[str, os.stat_result]) -> int | Unusable:
        return _hash(group.root / entry[0], entry[1], cache)

    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="image-hash") as pool:
        for (name, _), look in zip(todo, pool.map(hash_one, todo), strict=True):
            if isinstance(look, Unusable):
                left_out[name] = str(look)
            else:
                looked.append((name, look))
    for (name, _), twin in zip(looked, near_hashes([h for _, h in looked], threshold), strict=True):
        if twin is not None:
            left_out[name] = f"{Reason.LOOKS_LIKE.value} {looked[twin][0]}"
    kept = tuple(name for name in group.files if name not in left_out)
    return replace(group, files=kept), [(name, left_out[name]) for name in group.files if name in left_out]


def _hash(path: Path, info: os.stat_result, cache: HashCache | None) -> int | Unusable:
    known = cache.get(path, info) if cache is not None else None
    if known is not None:
        return known
    try:
        made = file_dhash(path)
    except Unusable as error:
        return error
    if cache is not None:
        cache.put(path, info, made)
    return made


def image_distance(first: Path, second: Path) -> float:
    """How different two images look: bits that differ in their hashes; all 64 if one cannot be decoded."""
    try:
        return float((file_dhash(first) ^ file_dhash(second)).bit_count())
    except Unusable:
        return 64.0
