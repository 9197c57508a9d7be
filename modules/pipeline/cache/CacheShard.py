"""A file of the cache: named tensors in the safetensors format, mapped into memory."""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from modules.util.tensors.lazy_tensors import TYPES

Tensors = dict[str, torch.Tensor]
Entries = dict[str, dict[str, int]]
Layout = tuple[torch.dtype, tuple[int, ...], int]
"""Type, shape and size in bytes of a tensor."""

FORMAT = "1"
_MAX_HEADER = 64 << 20
_FIRST = '{"__metadata__":'


class CacheShard:
    """An open file of the cache.

    The tensors share the mapped memory and must not be modified; they stay valid after the shard is dropped. The
    library's own reader for torch is not used, since safetensors 0.8.0 never frees 56 bytes of every tensor it reads.

    Args:
        path: the file; it is never changed after it has appeared.
        entries: the checksums of all tensors by key and part, as ``read_entries`` returns them.

    Raises:
        OSError: the file cannot be read or mapped.
        ValueError: it is incomplete, or its header is invalid.
    """

    def __init__(self, path: Path, entries: Mapping[str, Mapping[str, int]]) -> None:
        size = path.stat().st_size
        with path.open("rb") as stream:
            length, text = _header(stream, size)
        try:
            facts, layouts = json.loads(text), dict[Layout, Layout]()
            self._places = {
                key: tuple(
                    (part, *_place(facts[f"{key}/{part}"], 8 + length, size, layouts)) for part in parts
                )
                for key, parts in entries.items()
            }
        except (LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"its header is invalid ({error})") from error
        try:
            # as bytes, which may be those of any name
            name: Any = os.fsencode(path)
            self._bytes = torch.from_file(name, shared=False, size=size, dtype=torch.uint8)
        except RuntimeError as error:
            raise OSError(str(error).splitlines()[0]) from error

    def tensors(self, key: str) -> Tensors:
        """The tensors of an entry by part, on the CPU. Raises ``KeyError`` if there is no such entry."""
        found: Tensors = {}
        for part, at, (dtype, shape, count) in self._places[key]:
            found[part] = self._bytes[at : at + count].view(dtype).reshape(shape)
        return found


def _place(
    facts: Mapping[str, Any], start: int, size: int, layouts: dict[Layout, Layout]
) -> tuple[int, Layout]:
    """Offset in the file and layout of a tensor; tensors of equal layout share one object.

    Raises:
        LookupError, TypeError, ValueError: these facts of the header are invalid.
    """
    dtype: torch.dtype = getattr(torch, TYPES[facts["dtype"]])
    shape, (first, last) = tuple(facts["shape"]), facts["data_offsets"]
    at, count = start + first, math.prod(shape) * dtype.itemsize
    inside = min(first, *shape, 0) == 0 and at + count <= size
    if not inside or last - first != count or at % dtype.itemsize:
        raise ValueError("its header is invalid")
    layout = (dtype, shape, count)
    return at, layouts.setdefault(layout, layout)


def checksum(tensor: torch.Tensor) -> int:
    """CRC-32 of the bytes of a tensor."""
    return zlib.crc32(tensor.contiguous().flatten().view(torch.uint8).numpy().data)


def read_entries(path: Path, known: bool) -> Entries:
    """Key, part and checksum of all tensors of a file.

    Args:
        known: whether the file was verified before and has not changed; then only the checksums are read,
            which list all names.

    Raises:
        ValueError: the file is incomplete or not ours.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        length, text = _header(stream, size)
    # facts about the file come first
    if known and text.startswith(_FIRST):
        meta, names = json.JSONDecoder().raw_decode(text, len(_FIRST))[0], None
    else:
        names = json.loads(text)
        meta = names.pop("__metadata__", {})
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ValueError("it is of another format")
    sums: dict[str, int] = json.loads(meta["sums"])
    if names is not None:
        end = max((tensor["data_offsets"][1] for tensor in names.values()), default=0)
        if size != 8 + length + end:
            raise ValueError(f"it has {size} bytes instead of {8 + length + end}")
        sums = {name: sums[name] for name in names}
    entries: Entries = {}
    for name, total in sums.items():
        key, _, part = name.partition("/")
        entries.setdefault(key, {})[part] = int(total)
    return entries


def verify(path: Path, entries: Mapping[str, Mapping[str, int]]) -> None:
    """Read a whole file. Raises ``ValueError`` if the checksum of a tensor is wrong."""
    shard = CacheShard(path, entries)
    for key in entries:
        check(key, shard.tensors(key), entries[key])


def check(key: str, tensors: Tensors, wanted: Mapping[str, int]) -> None:
    """Compare the tensors of an entry with their checksums. Raises ``ValueError`` if one is wrong."""
    for part, tensor in tensors.items():
        if checksum(tensor) != wanted[part]:
            raise ValueError(f"the checksum of {key}/{part} is wrong")


def _header(stream: BinaryIO, size: int) -> tuple[int, str]:
    """Length in bytes and text of the header of a file of ``size`` bytes. Raises ``ValueError``."""
    start = stream.read(8)
    if len(start) < 8:
        raise ValueError("it is too short")
    (length,) = struct.unpack("<Q", start)
    if length > min(size - 8, _MAX_HEADER):
        raise ValueError("its header is truncated")
    return length, stream.read(length).decode()
