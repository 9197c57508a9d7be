"""Hashes of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from modules.remote.there.limits import MAX_FILE


def digest_of(path: Path, size: int | None = None) -> str:
    """SHA-256 of a file, or of its first ``size`` bytes."""
    made, left = hashlib.sha256(), MAX_FILE if size is None else size
    with path.open("rb") as stream:
        while left and (block := stream.read(min(left, 1 << 20))):
            made.update(block)
            left -= len(block)
    return made.hexdigest()
