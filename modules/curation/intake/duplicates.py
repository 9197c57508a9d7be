"""Finds duplicate images: byte for byte, or near-duplicates by a 64-bit difference hash."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy
from PIL import Image

from modules.curation.ImageGroup import ImageGroup
from modules.util.dpo_curation_util import file_sha256
from modules.util.errors import UserError
from modules.util.files.Database import Database
from modules.util.image_metadata.containers.source import unusable
from modules.util.image_metadata.limits import MAX_PIXELS, Reason, Unusable
from modules.util.owned_files import Owned
from modules.util.pairs.decoding import IMAGE_ERRORS
from modules.util.pairs.grey_levels import eight_bits, is_deep

log = logging.getLogger(__name__)
_GRID = (9, 8)
_DETAIL = (16, 16)
_FINE = 64
"""Areas on the shorter side to which an image is first reduced. There is a single pass, because one over a
megapixel costs as much as half of the hash.
"""
_FINGERPRINT_VERSION = 3
"""Version of the fingerprint, so that different kinds are never compared."""
_ALIKE = 0.985
"""Correlation of brightness from which images with near hashes are near-duplicates. Recompressed, resized or
brightened copies have 0.995 and more. Of flat drawings with near hashes, which differ in where things are,
one in eight reaches this value.
"""
_PLAIN = 1.0
_SAME_SHADE = 8.0
_WORKERS = min(4, os.cpu_count() or 1)


class Fingerprint(NamedTuple):
    """A compact description of what an image looks like.

    Args:
        dhash: 64 bits row by row, highest bit first: whether each of 9x8 areas is brighter than its right
            neighbour.
        grey: brightness of 16x16 areas, one byte each.
    """

    dhash: int
    grey: bytes

    def pack(self) -> bytes:
        """Encode as bytes."""
        return self.dhash.to_bytes(8, "big") + self.grey

    @staticmethod
    def unpack(data: bytes) -> Fingerprint:
        """Decode the bytes of ``pack``."""
        return Fingerprint(int.from_bytes(data[:8], "big"), data[8:])


def fingerprint_of(image: Image.Image) -> Fingerprint:
    """The fingerprint of a decoded image."""
    grey = _grey(image)
    factor = max(1, min(grey.size) // _FINE)
    # The last areas may be incomplete; the box leaves out what is missing.
    box = (0.0, 0.0, grey.width / factor, grey.height / factor)
    fine = grey.reduce(factor) if factor > 1 else grey
    small = numpy.asarray(fine.resize(_GRID, Image.Resampling.BOX, box))
    bits = numpy.packbits(small[:, :-1] > small[:, 1:]).tobytes()
    return Fingerprint(int.from_bytes(bits, "big"), fine.resize(_DETAIL, Image.Resampling.BOX, box).tobytes())


def _grey(image: Image.Image) -> Image.Image:
    """Convert to 8-bit grey, with transparent areas over black."""
    if is_deep(image):
        return Image.fromarray(eight_bits(image))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        if image.getchannel("A").getextrema() != (255, 255):
            # Colours times opacity is the result over black.
            return Image.merge("RGB", image.convert("RGBa").split()[:3]).convert("L")
    elif image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    return image.convert("L")


def fingerprint(path: str | os.PathLike[str]) -> Fingerprint:
    """Decode as little of an image as its format allows, and compute its fingerprint.

    Raises:
        Unusable: the image cannot be opened or decoded, or has too many pixels.
    """
    try:
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise Unusable(Reason.TOO_MANY_PIXELS, f"{image.width}x{image.height}")
            image.draft("L", (_DETAIL[0] * 4, _DETAIL[1] * 4))
            return fingerprint_of(image)
    except (FileNotFoundError, PermissionError) as error:
        raise unusable(error) from error
    except IMAGE_ERRORS as error:
        raise Unusable(Reason.UNDECODABLE, str(error)) from error


def file_dhash(path: str | os.PathLike[str]) -> int:
    """The difference hash of an image file. Raises as ``fingerprint`` does."""
    return fingerprint(path).dhash


class HashCache:
    """An SQLite cache of hashes by path, size and modification time. Losing it costs nothing but time.

    Args:
        path: the file, created if missing. A damaged one is replaced. If it cannot be used (no permission, in
            use by another program, disk full), hashes are kept in memory.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = self._open(Owned(path.parent, local=True), path.name)
        except (OSError, UserError, sqlite3.OperationalError) as error:
            self._forget_file(error)

    def _open(self, owned: Owned, name: str) -> sqlite3.Connection:
        files = [owned.plain_file(f"{name}{suffix}") for suffix in ("", "-wal", "-shm")]
        try:
            return _connect(str(files[0]))
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            log.warning("%s is damaged and replaced: %s", files[0], error)
            for file in files:
                owned.remove(file.name)
            return _connect(str(files[0]))

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

    def get(self, path: Path, info: os.stat_result) -> Fingerprint | None:
        """The fingerprint of a file that has not changed since; ``None`` if unknown."""
        row = self._execute(
            "SELECT look FROM looks WHERE path = ? AND size = ? AND mtime_ns = ?",
            (str(path), info.st_size, info.st_mtime_ns),
        )
        return None if row is None else Fingerprint.unpack(row[0])

    def put(self, path: Path, info: os.stat_result, made: Fingerprint) -> None:
        """Store a fingerprint."""
        self._execute(
            "INSERT OR REPLACE INTO looks VALUES (?, ?, ?, ?)",
            (str(path), info.st_size, info.st_mtime_ns, made.pack()),
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
    database = sqlite3.connect(
        path, timeout=1.0, isolation_level=None, check_same_thread=False, factory=Database
    )
    try:
        database.check_plain()
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=OFF")
        if database.execute("PRAGMA user_version").fetchone()[0] != _FINGERPRINT_VERSION:
            database.execute("DROP TABLE IF EXISTS looks")
            database.execute(f"PRAGMA user_version={_FINGERPRINT_VERSION}")
        database.execute(
            "CREATE TABLE IF NOT EXISTS looks"
            " (path TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER, look BLOB) WITHOUT ROWID"
        )
        database.execute("SELECT look FROM looks LIMIT 1").fetchone()
    except sqlite3.DatabaseError:
        database.close()
        raise
    return database


def near_fingerprints(prints: Sequence[Fingerprint], threshold: int) -> list[int | None]:
    """For each fingerprint, in order: the index of the first earlier kept one that is near, or ``None`` if it
    is kept.

    Two fingerprints are near if their hashes differ in at most ``threshold`` bits and their brightness is
    correlated; the hash alone says little about flat drawings. Every dropped fingerprint is near one that
    stays.
    """
    hashes = numpy.array([one.dhash for one in prints], dtype=numpy.uint64)
    shades = [_shade(one.grey) for one in prints]
    kept: list[int] = []
    # hashes[kept] would make an array of a list each time
    kept_hashes = numpy.empty_like(hashes)
    verdicts: list[int | None] = []
    for i, value in enumerate(hashes):
        near = numpy.bitwise_count(kept_hashes[: len(kept)] ^ value) <= threshold
        twin = next((kept[k] for k in numpy.flatnonzero(near) if _alike(shades[kept[k]], shades[i])), None)
        verdicts.append(twin)
        if twin is None:
            kept_hashes[len(kept)] = value
            kept.append(i)
    return verdicts


class _Shade(NamedTuple):
    """Normalised brightness: mean, standard deviation, and the pattern scaled to length 1."""

    mean: float
    spread: float
    pattern: numpy.ndarray[tuple[int], numpy.dtype[numpy.float32]]


def _shade(grey: bytes) -> _Shade:
    values = numpy.frombuffer(grey, numpy.uint8).astype(numpy.float32)
    mean = float(values.mean())
    values -= mean
    length = float(numpy.linalg.norm(values))
    return _Shade(mean, length / len(values) ** 0.5, values / max(length, 1e-6))


def _alike(first: _Shade, second: _Shade) -> bool:
    if max(first.spread, second.spread) < _PLAIN:
        return abs(first.mean - second.mean) <= _SAME_SHADE
    return float(first.pattern @ second.pattern) >= _ALIKE


def equal_files(paths: Sequence[Path], sizes: Sequence[int]) -> list[int | None]:
    """For each file, in order: the index of the first earlier one with the same bytes, or ``None``.

    Only files of equal size are read. A file that has disappeared meanwhile equals none.
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
    group: ImageGroup, threshold: int, cache: HashCache | None = None, decode: bool = True
) -> tuple[ImageGroup, list[tuple[str, str]]]:
    """Remove near-duplicates from a group, keeping the newest of each kind. Returns the group, and the
    removed names with reasons.

    Args:
        group: images of one prompt.
        threshold: images whose hashes differ in at most this many of 64 bits are near-duplicates.
        cache: hashes of earlier scans.
        decode: whether to decode images that are not in the cache; otherwise these are kept.
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
    taken: list[tuple[str, Fingerprint]] = []

    def take_one(entry: tuple[str, os.stat_result]) -> Fingerprint | Unusable | None:
        return _fingerprint(group.root / entry[0], entry[1], cache, decode)

    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="image-hash") as pool:
        for (name, _), made in zip(todo, pool.map(take_one, todo), strict=True):
            if isinstance(made, Unusable):
                left_out[name] = str(made)
            elif made is not None:
                taken.append((name, made))
    for (name, _), twin in zip(taken, near_fingerprints([made for _, made in taken], threshold), strict=True):
        if twin is not None:
            left_out[name] = f"{Reason.LOOKS_LIKE.value} {taken[twin][0]}"
    return group.without(left_out), [(name, left_out[name]) for name in group.files if name in left_out]


def _fingerprint(
    path: Path, info: os.stat_result, cache: HashCache | None, decode: bool
) -> Fingerprint | Unusable | None:
    known = cache.get(path, info) if cache is not None else None
    if known is not None or not decode:
        return known
    try:
        made = fingerprint(path)
    except Unusable as error:
        return error
    if cache is not None:
        cache.put(path, info, made)
    return made


class FingerprintDistance:
    """Visual distance of two images: the number of differing bits of their hashes; all 64 if one cannot be
    decoded.

    Pairing compares every good image with every bad one, so each is decoded once and cached.
    """

    def __init__(self) -> None:
        self._hashes: dict[Path, int | None] = {}

    def __call__(self, first: Path, second: Path) -> float:
        hashes = [self._hash(path) for path in (first, second)]
        if hashes[0] is None or hashes[1] is None:
            return 64.0
        return float((hashes[0] ^ hashes[1]).bit_count())

    def _hash(self, path: Path) -> int | None:
        if path not in self._hashes:
            try:
                self._hashes[path] = file_dhash(path)
            except Unusable:
                self._hashes[path] = None
        return self._hashes[path]
