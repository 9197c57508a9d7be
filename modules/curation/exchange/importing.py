"""Preference pairs of other programs into an output folder, once each however often they are imported."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modules.curation.exchange.public_formats import PublicPair
from modules.curation.intake.image_size import image_size
from modules.curation.store import CurationStore
from modules.util.bucket import aspect_label
from modules.util.dpo_curation_util import IMAGE_EXTENSIONS, SIDES, file_sha256
from modules.util.errors import DataError
from modules.util.image_metadata_util import normalise_prompt

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", ".png"),
    (b"\xff\xd8\xff", ".jpg"),
    (b"RIFF", ".webp"),
    (b"BM", ".bmp"),
    (b"II*\x00", ".tif"),
    (b"MM\x00*", ".tif"),
)


@dataclass(frozen=True)
class ImportCount:
    """What an import did: pairs that are new, and pairs the folder had already."""

    imported: int
    already_there: int


def image_extension(data: bytes) -> str:
    """The extension for image bytes, by their signature.

    Raises:
        DataError: no image format this program reads.
    """
    if data[4:12] in (b"ftypavif", b"ftypavis"):
        return ".avif"
    for signature, extension in _SIGNATURES:
        if data.startswith(signature):
            return extension
    raise DataError(f"bytes that begin with {data[:8]!r} are not an image")


def import_pairs(
    store: CurationStore,
    pairs: Iterable[PublicPair],
    origin: str,
    progress: Callable[[int], None] = lambda done: None,
) -> ImportCount:
    """Copy pairs into the folder of ``store``; each is durable before the next one is read.

    Prompts are normalised like those of images, so that their tags are neither captions nor groups of their own.
    A pair whose prompt and both images the folder already has is passed over, so an import that was
    interrupted is finished by starting it again.

    Args:
        origin: what to remember as the source of images that have no file of their own.
        progress: called with the number of pairs dealt with.

    Raises:
        DataError: an image is missing or cannot be decoded, with the number of its pair; pairs before it are in.
    """
    known = {_identity(normalise_prompt(p["prompt"]), p.get("hashes", {})) for p in store.pairs()}
    imported = already = 0
    with tempfile.TemporaryDirectory(prefix="import-") as scratch:
        for number, given in enumerate(pairs, 1):
            pair = replace(given, prompt=normalise_prompt(given.prompt))
            identity = _identity(pair.prompt, {side: _digest(getattr(pair, side)) for side in SIDES})
            if identity in known:
                already += 1
            else:
                try:
                    _import_one(store, pair, Path(scratch), f"{origin}, pair {number}")
                except DataError as error:
                    raise DataError(f"pair {number}: {error.message}", hint=error.hint) from error
                known.add(identity)
                imported += 1
            progress(number)
    return ImportCount(imported, already)


def _identity(prompt: str, hashes: dict[str, str]) -> tuple[str, str, str]:
    return prompt, hashes.get("chosen", ""), hashes.get("rejected", "")


def _digest(image: Path | bytes) -> str:
    return hashlib.sha256(image).hexdigest() if isinstance(image, bytes) else file_sha256(image)


def _import_one(store: CurationStore, pair: PublicPair, scratch: Path, origin: str) -> None:
    chosen, rejected = (_as_file(getattr(pair, side), scratch / side) for side in SIDES)
    label = aspect_label(*image_size(chosen))
    image_size(rejected)
    payload: dict[str, Any] = {"used": [], "certainty": None, "automatic": False}
    key = f"import:{label}:{pair.prompt}"
    (made,) = store.export(key, [(chosen, rejected)], pair.prompt, label, payload)
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
