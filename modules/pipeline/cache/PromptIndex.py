"""An index of facts about prompts: in how many chunks each is read, and whether its end is read at all.

Both depend on the tokens of a prompt. Tokenizing a hundred thousand prompts takes longer than the rest of a
start.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Sequence
from hashlib import blake2b

from modules.pipeline.cache.FactsFile import FactsFile, Row

_COLUMNS = ("reader BLOB", "prompt BLOB", "chunks INTEGER", "cut INTEGER", "sum INTEGER")
_UNKNOWN = -1
_AT_ONCE = 4096
"""Number of prompts tokenized together, so that their tokens do not fill the memory."""


class PromptIndex:
    """Facts about prompts. Thread-safe.

    Args:
        path: the SQLite file; ``None`` keeps everything in memory.
        reader: digest of everything that determines how a prompt is read: tokenizers, lengths, chunks,
            emphasis, learned words.
    """

    def __init__(self, path: str | os.PathLike[str] | None, reader: str) -> None:
        self._file = FactsFile(path, "prompt index", "prompts", _COLUMNS, key=2)
        self._reader = bytes.fromhex(reader)
        self._chunks: dict[bytes, int] = {}
        self._cut: dict[bytes, int] = {}
        self._keys: dict[str, bytes] = {}
        self._fresh: set[bytes] = set()
        self._lock = threading.Lock()
        if not self._file.read(self._keep, "reader = ?", self._reader):
            self._chunks.clear()
            self._cut.clear()

    def _keep(self, row: Row) -> None:
        reader, prompt, chunks, cut, total = row
        if total != _sum(reader, prompt, chunks, cut):
            raise ValueError("the sum of a row is wrong")
        self._chunks[prompt], self._cut[prompt] = chunks, cut

    def chunks(self, prompt: str, count: Callable[[str], int]) -> int:
        """Number of chunks in which a prompt is read. Calls ``count`` once in the life of the index."""
        key = self._key(prompt)
        found = self._chunks.get(key, _UNKNOWN)
        if found == _UNKNOWN:
            found = count(prompt)
            with self._lock:
                self._chunks[key] = found
                self._fresh.add(key)
        return found

    def cut(self, prompts: Sequence[str], find: Callable[[Sequence[str]], Sequence[str]]) -> list[str]:
        """The prompts whose end is not read.

        Args:
            find: determines them; called with the prompts not known yet.
        """
        keys = [self._key(prompt) for prompt in prompts]
        unknown = [
            (prompt, key)
            for prompt, key in zip(prompts, keys, strict=True)
            if self._cut.get(key, _UNKNOWN) == _UNKNOWN
        ]
        for start in range(0, len(unknown), _AT_ONCE):
            some = unknown[start : start + _AT_ONCE]
            found = set(find([prompt for prompt, _ in some]))
            with self._lock:
                self._cut.update((key, int(prompt in found)) for prompt, key in some)
                self._fresh.update(key for _, key in some)
        return [prompt for prompt, key in zip(prompts, keys, strict=True) if self._cut[key]]

    def _key(self, prompt: str) -> bytes:
        found = self._keys.get(prompt)
        if found is None:
            found = blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            self._keys[prompt] = found
        return found

    def flush(self) -> None:
        """Write new facts to the file."""
        with self._lock:
            fresh, self._fresh = sorted(self._fresh), set()
            rows: list[Row] = []
            for key in fresh:
                facts = (self._chunks.get(key, _UNKNOWN), self._cut.get(key, _UNKNOWN))
                rows.append((self._reader, key, *facts, _sum(self._reader, key, *facts)))
        self._file.write(rows)


def _sum(reader: bytes, prompt: bytes, chunks: int, cut: int) -> int:
    """A checksum, because a wrong number of chunks would find states of another reading."""
    return zlib.crc32(b"%b%b%d,%d" % (reader, prompt, chunks, cut))
