from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from modules.pipeline.cache.ContentCache import ContentCache
from modules.pipeline.Node import Node

CACHE_FORMAT = "2"
"""Increased whenever the encoding changes in a way that no other part of the keys reflects."""


def content_key(*parts: str) -> str:
    """A cache key: the digest of everything an entry is made from."""
    raws = [part.encode("utf-8", "surrogatepass") for part in parts]
    joined = b"".join([b"%d:%b" % (len(raw), raw) for raw in raws])
    return hashlib.blake2b(joined, digest_size=16).hexdigest()


class CachedTensors(Node):
    """Looks up encoded tensors: their ``key`` and the ``tensors`` under it.

    Args:
        inputs: names of the inputs of the key.
        key: computes the key from their values.
        cache: holds the entries.
        key_out, tensors_out: names of the outputs.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        key: Callable[..., str],
        cache: ContentCache,
        key_out: str,
        tensors_out: str,
    ) -> None:
        super().__init__(inputs, [key_out, tensors_out])
        self._key, self._cache = key, cache
        self._key_out, self._tensors_out = key_out, tensors_out

    def get_item(self, variation: int, index: int, requested_name: str | None = None) -> dict[str, Any]:
        values = [self._get_previous_item(variation, name, index) for name in self._inputs]
        key = self._key(*values)
        if requested_name == self._key_out:
            return {self._key_out: key}
        return {self._key_out: key, self._tensors_out: self._cache.get(key)}
