"""Sets of entries that were once found complete in a cache, so that a start does not ask for each entry again."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from modules.pipeline.cache.ContentCache import ContentCache
from modules.util.errors import UserError
from modules.util.jsonio import read_json, write_json

_log = logging.getLogger(__name__)
_FILE, _FORMAT = "complete.json", 1
_MOST = 16
"""Sets that are remembered; the oldest go first."""


class CompleteSets:
    """Digests of sets, each with the shards that held all of its entries.

    A digest is made from everything that decides which entries a set has. A set is believed as long as all of these
    shards are in the cache, with the size and time they had then: a shard never changes after it has appeared. Losing
    the file costs time, never correctness.

    Args:
        cache: made before it is looked through, so that shards that disappear meanwhile are noticed.
    """

    def __init__(self, cache: ContentCache) -> None:
        self._cache, self._path = cache, cache.folder / _FILE
        self._present = set(cache.shards)
        self._sets = self._read()

    def _read(self) -> dict[str, Any]:
        if not self._path.is_file():
            return {}
        try:
            data = read_json(self._path, "list of complete sets")
        except UserError as error:
            _log.warning("%s", error)
            return {}
        sets = data.get("sets") if isinstance(data, dict) and data.get("format") == _FORMAT else None
        return sets if isinstance(sets, dict) else {}

    def __contains__(self, digest: object) -> bool:
        known, shards = self._sets.get(str(digest)), self._cache.shards
        return isinstance(known, dict) and bool(known) and all(shards.get(n) == v for n, v in known.items())

    def add(self, digest: str) -> None:
        """All entries of a set are in the cache now."""
        shards = self._cache.shards
        if not self._present <= shards.keys():
            # some were joined or removed meanwhile: the next start looks again
            return
        others = {name: known for name, known in self._sets.items() if name != digest}
        self._sets = {**dict(list(others.items())[1 - _MOST :]), digest: shards}
        try:
            write_json(self._path, {"format": _FORMAT, "sets": self._sets}, indent=None)
        except (OSError, UserError) as error:
            _log.warning("%s cannot be written (%s)", self._path, error)


def code_digest(modules: Iterable[ModuleType]) -> str:
    """Of the source code of modules: what another version of them might do differently is not remembered."""
    code = hashlib.blake2b(digest_size=16)
    for module in modules:
        text = Path(str(module.__file__)).read_bytes()
        code.update(b"%d:%b" % (len(text), text))
    return code.hexdigest()


def loaded_code(modules: Iterable[ModuleType]) -> str | None:
    """``code_digest`` for a constant of a module: sources may change between its import and a later look at them.
    ``None`` where there are no sources; then nothing may be remembered.
    """
    try:
        return code_digest(modules)
    except OSError:
        return None
