"""Imports preference pairs of other programs into an output folder, each only once, however often it is repeated."""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modules.curation.exchange.public_formats import BadRow, PublicPair
from modules.curation.intake.image_size import image_size
from modules.curation.store import CurationStore
from modules.util.bucket import aspect_label
from modules.util.dpo_curation_util import IMAGE_EXTENSIONS, SIDES, file_sha256
from modules.util.errors import DataError, list_offenders
from modules.util.image_metadata_util import normalise_prompt
from modules.util.pairs.Preferences import Preferences
from modules.util.pairs.source_files import SourceImage

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", ".png"),
    (b"\xff\xd8\xff", ".jpg"),
    (b"RIFF", ".webp"),
    (b"BM", ".bmp"),
    (b"II*\x00", ".tif"),
    (b"MM\x00*", ".tif"),
)


MAX_LISTED = 1000


@dataclass(frozen=True)
class ImportCount:
    """Result of an import.

    Args:
        imported: new pairs.
        already_there: pairs that the folder already had.
        contradictory: pairs skipped because the same two images also occur the other way round under the same
            prompt, in the file or in the folder.
        identical: pairs skipped because both sides are the same image.
        left_out: unusable rows.
        faults: the reasons for these, up to ``MAX_LISTED``.
    """

    imported: int = 0
    already_there: int = 0
    contradictory: int = 0
    identical: int = 0
    left_out: int = 0
    faults: tuple[str, ...] = ()


def image_extension(data: bytes) -> str:
    """The extension for image bytes, by their signature.

    Raises:
        DataError: this program does not read the image format.
    """
    if data[4:12] in (b"ftypavif", b"ftypavis"):
        return ".avif"
    for signature, extension in _SIGNATURES:
        if data.startswith(signature):
            return extension
    raise DataError(f"bytes that begin with {data[:8]!r} are not an image")


def import_pairs(
    store: CurationStore,
    pairs: Iterable[PublicPair | BadRow],
    origin: str,
    progress: Callable[[int], None] = lambda done: None,
) -> ImportCount:
    """Copy pairs into the folder of ``store``. Each is durable before the next one is copied.

    Prompts are normalised like those of images, so that tags neither enter captions nor split groups. A pair
    whose prompt and images the folder already has is skipped, so that an interrupted import can be finished
    by repeating it. Unusable rows are skipped and listed.

    Args:
        pairs: iterated twice, first to find contradictions.
        origin: recorded as the source of images without a file of their own.
        progress: called with the number of processed pairs.

    Raises:
        DataError: no row is usable. UserError: the folder is not writable; earlier pairs stay imported.
    """
    return _Import(store, origin).run(pairs, progress)


class _Import:
    """State of one import."""

    def __init__(self, store: CurationStore, origin: str) -> None:
        self._store, self._origin = store, origin
        self._preferences = Preferences()
        self._known = set()
        for pair in store.pairs():
            hashes = pair.get("hashes", {})
            self._known.add(identity := _identity(normalise_prompt(pair["prompt"]), hashes))
            self._preferences.add(*identity)
        self._counts: Counter[str] = Counter()
        self._faults: list[str] = []

    def run(self, pairs: Iterable[PublicPair | BadRow], progress: Callable[[int], None]) -> ImportCount:
        if iter(pairs) is pairs:
            raise TypeError("the pairs are read twice, but an iterator can be read only once")
        for pair in pairs:
            self._look_at(pair)
        with tempfile.TemporaryDirectory(prefix="import-") as scratch:
            for number, pair in enumerate(pairs, 1):
                outcome = self._take(pair, Path(scratch), number)
                self._counts[outcome] += 1
                progress(number)
        count = ImportCount(**self._counts, faults=tuple(self._faults))
        if count.left_out and not count.imported and not count.already_there:
            raise DataError(f"no row of {self._origin} can be used:\n{list_offenders(self._faults)}")
        return count

    def _look_at(self, pair: PublicPair | BadRow) -> None:
        if isinstance(pair, PublicPair):
            with suppress(DataError):  # listed in its turn
                self._preferences.add(*_identity(normalise_prompt(pair.prompt), _digests(pair)))

    def _take(self, given: PublicPair | BadRow, scratch: Path, number: int) -> str:
        """Import one pair. Returns the outcome as a field name of ``ImportCount``."""
        try:
            if isinstance(given, BadRow):
                raise DataError(given.reason)
            pair = replace(given, prompt=normalise_prompt(given.prompt))
            identity = _identity(pair.prompt, _digests(pair))
            if identity in self._known:
                return "already_there"
            if identity[1] == identity[2]:
                return "identical"
            if self._preferences.is_contradictory(*identity):
                return "contradictory"
            _import_one(self._store, pair, scratch, f"{self._origin}, pair {number}")
        except DataError as error:
            reason = error.message if isinstance(given, BadRow) else f"pair {number}: {error.message}"
            self._faults += [reason] if len(self._faults) < MAX_LISTED else []
            return "left_out"
        self._known.add(identity)
        return "imported"


def _identity(prompt: str, hashes: Mapping[str, str]) -> tuple[str, str, str]:
    return prompt, hashes.get("chosen", ""), hashes.get("rejected", "")


def _digests(pair: PublicPair) -> dict[str, str]:
    images = {side: getattr(pair, side) for side in SIDES}
    try:
        return {
            side: hashlib.sha256(image).hexdigest() if isinstance(image, bytes) else file_sha256(image)
            for side, image in images.items()
        }
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error


def _import_one(store: CurationStore, pair: PublicPair, scratch: Path, origin: str) -> None:
    chosen, rejected = (_as_file(getattr(pair, side), scratch / side) for side in SIDES)
    label = aspect_label(*image_size(chosen))
    image_size(rejected)
    for source in pair.sources:
        image_size(_as_file(source, scratch))
    sources = [SourceImage(source, file_sha256(source)) for source in pair.sources]
    payload: dict[str, Any] = {"used": [], "certainty": None, "automatic": False}
    key = f"import:{label}:{pair.prompt}"
    facts = (pair.prompt, label, payload)
    (made,) = store.export(key, [(chosen, rejected)], *facts, sources=sources)
    if isinstance(pair.chosen, bytes):
        store.update({**made, "sources": dict.fromkeys(SIDES, origin)})


def _as_file(image: Path | bytes, scratch: Path) -> Path:
    if isinstance(image, bytes):
        file = scratch.with_suffix(image_extension(image))
        file.write_bytes(image)
        return file
    if image.suffix.lower() not in IMAGE_EXTENSIONS:
        raise DataError(f"{image} has no image extension")
    return image
