"""A cache of encoded images and texts on disk, each under the digest of everything it depends on.

Entries are in safetensors shards. A shard appears complete, by an atomic rename, and is never changed
afterwards. A killed process therefore loses only what it had not written yet, and any number of processes may
add to one folder. A damaged shard is set aside with a warning, and its entries are made again.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from modules.pipeline.cache.CacheShard import (
    FORMAT,
    CacheShard,
    Tensors,
    check,
    checksum,
    read_entries,
    verify,
)
from modules.util.errors import DataError, UserError
from modules.util.jsonio import atomic_path, read_json, write_json
from modules.util.owned_files import Owned

_log = logging.getLogger(__name__)

SHARD_BYTES = 64 << 20
SHARD_ENTRIES = 1024
FLUSH_SECONDS = 20.0
OPEN_SHARDS = 128
_VERIFIED = "verified.json"
# files with other names in the folder are not ours, and are never removed
_SHARD = re.compile(r"cache-\d{8}-[0-9a-f]{32}\.safetensors")
# exceptions on reading a file that was tampered with
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


class ContentCache:
    """Named tensors by key.

    Args:
        folder: folder of the shards; created on the first write.

    Keys are hex digests. Reading is cheap (shards stay open and mapped) and may happen in several threads.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._lock = threading.RLock()
        self._shards: dict[str, dict[str, dict[str, int]]] = {}
        self._where: dict[str, str] = {}
        self._pending: dict[str, Tensors] = {}
        self._pending_bytes = 0
        self._flushed_at = time.monotonic()
        self._open: OrderedDict[str, CacheShard] = OrderedDict()
        self._checked: set[str] = set()
        self._verified: dict[str, list[int]] = self._load_verified()
        self.rescan()

    def __len__(self) -> int:
        return len(self._where) + len(self._pending)

    def __contains__(self, key: object) -> bool:
        return key in self._where or key in self._pending

    @property
    def shards(self) -> dict[str, list[int]]:
        """Size in bytes and time of the last change in ns of each file, by name."""
        with self._lock:
            return {name: self._verified[name] for name in sorted(self._shards)}

    def missing(self, keys: Iterable[str]) -> list[str]:
        """The keys without an entry, in order, without duplicates."""
        return [key for key in dict.fromkeys(keys) if key not in self]

    # -- finding shards ------------------------------------------------------------------------------------

    def rescan(self) -> None:
        """Look for shards added by other processes, and set damaged ones aside.

        Raises:
            DataError: a shard cannot be read, or a damaged one cannot be removed.
        """
        with self._lock:
            found = self.folder.iterdir() if self.folder.is_dir() else ()
            present = {path.name for path in found if _SHARD.fullmatch(path.name)}
            for name in [name for name in self._shards if name not in present]:
                self._forget(name)
            for name in sorted(present - self._shards.keys()):
                self._add(name)

    def _add(self, name: str) -> None:
        path = self.folder / name
        try:
            stat = path.stat()
            known = self._verified.get(name) == [stat.st_size, stat.st_mtime_ns]
            entries = read_entries(path, known)
            if not known:
                verify(path, entries)
                self._verified[name] = [stat.st_size, stat.st_mtime_ns]
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unreadable(name, error) from error
        except _DAMAGE as error:
            self._set_aside(name, str(error))
            return
        self._shards[name] = entries
        for key in entries:
            self._where.setdefault(key, name)

    def _forget(self, name: str) -> None:
        for key in self._shards.pop(name, {}):
            if self._where.get(key) == name:
                del self._where[key]
        self._open.pop(name, None)
        self._verified.pop(name, None)

    def _set_aside(self, name: str, reason: str) -> None:
        _log.warning(
            "the cache file %s is damaged; its entries are made again (%s)", self.folder / name, reason
        )
        self._forget(name)
        try:
            Owned(self.folder, local=True).remove(name)
        except (OSError, UserError) as error:
            reason = error.message if isinstance(error, UserError) else str(error.strerror)
            raise DataError(
                f"the damaged cache file {self.folder / name} cannot be removed ({reason})",
                field="cache_dir",
                hint="delete it",
            ) from error

    def _unreadable(self, name: str, error: OSError) -> DataError:
        return DataError(
            f"the cache file {self.folder / name} cannot be read ({error.strerror or error})",
            field="cache_dir",
            hint="make it readable, or delete it; its entries are then made again",
        )

    def _load_verified(self) -> dict[str, list[int]]:
        path = self.folder / _VERIFIED
        if not path.is_file():
            return {}
        try:
            data = read_json(path, "list of verified cache files")
        except UserError as error:
            _log.warning("%s", error)
            return {}
        return {str(k): v for k, v in data.items() if isinstance(v, list)} if isinstance(data, dict) else {}

    # -- reading -------------------------------------------------------------------------------------------

    def get(self, key: str) -> Tensors:
        """The tensors of an entry, on the CPU. They must not be modified.

        Raises:
            KeyError: the entry does not exist.
            DataError: it was damaged after the start, and is removed and made again at the next start; or it
                cannot be read.
        """
        with self._lock:
            if key in self._pending:
                return dict(self._pending[key])
            name = self._where.get(key)
            if name is None:
                raise KeyError(key)
            try:
                tensors = self._shard(name).tensors(key)
                if key not in self._checked:
                    check(key, tensors, self._shards[name][key])
                    self._checked.add(key)
            except ValueError as error:
                self._set_aside(name, str(error))
                raise DataError(
                    f"the cache file {self.folder / name} was damaged while it was in use",
                    field="cache_dir",
                    hint="it is removed; start again and resume from the last backup",
                ) from error
            except OSError as error:
                self.rescan()
                if self._where.get(key, name) == name:
                    raise self._unreadable(name, error) from error
                # another process has merged it with others
                return self.get(key)
        return tensors

    def _shard(self, name: str) -> CacheShard:
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        shard = self._open[name] = CacheShard(self.folder / name, self._shards[name])
        while len(self._open) > OPEN_SHARDS:
            self._open.popitem(last=False)
        return shard

    # -- writing -------------------------------------------------------------------------------------------

    def put(self, key: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Add an entry. It is on disk after the next ``flush``, which happens automatically from time to time."""
        owned = {name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in tensors.items()}
        with self._lock:
            if key in self:
                return
            self._pending[key] = owned
            self._pending_bytes += sum(t.nbytes for t in owned.values())
            due = time.monotonic() - self._flushed_at > FLUSH_SECONDS
            if self._pending_bytes >= SHARD_BYTES or len(self._pending) >= SHARD_ENTRIES or due:
                self.flush()

    def flush(self) -> None:
        """Write the entries that were added since the last flush as one shard.

        Raises:
            DataError: the disk is full or the folder is not writable.
        """
        with self._lock:
            self._flushed_at = time.monotonic()
            if not self._pending:
                return
            name = self._write(self._pending)
            self._shards[name] = {
                key: {part: checksum(tensor) for part, tensor in tensors.items()}
                for key, tensors in self._pending.items()
            }
            self._where.update(dict.fromkeys(self._pending, name))
            self._pending, self._pending_bytes = {}, 0

    def _write(self, entries: Mapping[str, Tensors]) -> str:
        name = f"cache-{time.strftime('%Y%m%d')}-{uuid.uuid4().hex}.safetensors"
        flat = {f"{key}/{part}": t for key, tensors in entries.items() for part, t in tensors.items()}
        sums = {name: checksum(tensor) for name, tensor in flat.items()}
        try:
            with atomic_path(self.folder / name) as temporary:
                save_file(flat, temporary, metadata={"format": FORMAT, "sums": json.dumps(sums)})
            stat = (self.folder / name).stat()
        except (OSError, SafetensorError) as error:
            raise DataError(
                f"the cache cannot be written to {self.folder} ({error})",
                field="cache_dir",
                hint="make room or choose another folder; what is written so far is kept",
            ) from error
        self._verified[name] = [stat.st_size, stat.st_mtime_ns]
        return name

    def close(self) -> None:
        """Write the remaining entries, and record which shards were verified."""
        with self._lock:
            self.flush()
            self._open.clear()
            if self._shards:
                known = {
                    name: self._verified[name] for name in sorted(self._shards) if name in self._verified
                }
                try:
                    write_json(self.folder / _VERIFIED, known, indent=None)
                except (OSError, UserError) as error:
                    # it only saves reading the files at the next start
                    _log.warning("%s cannot be written (%s)", self.folder / _VERIFIED, error)

    def compact(self) -> None:
        """Merge small shards into large ones, because many short sessions leave many small files. Other processes may
        do the same at the same time.

        Raises:
            DataError: a shard was damaged since it was verified; it is removed. Or the disk is full.
        """
        with self._lock:
            self.flush()
            small = [
                name
                for name in sorted(self._shards)
                if len(self._shards[name]) < SHARD_ENTRIES // 4
                and self._verified[name][0] < SHARD_BYTES // 4
            ]
            if len(small) < 16:
                return
            for name in small:
                for key in list(self._shards.get(name, ())):
                    tensors = self.get(key)
                    if name not in self._shards:
                        # another process has just merged it
                        break
                    self._where.pop(key, None)
                    self._flushed_at = time.monotonic()
                    self.put(key, tensors)
            self.flush()
            for name in small:
                self._forget(name)
                # another process on Windows may still have it open; a duplicate entry does no harm
                try:
                    Owned(self.folder, local=True).remove(name)
                except PermissionError:
                    _log.info("%s is in use and is kept", self.folder / name)
            self.rescan()
