"""Reads the header of a GGUF file: its tensors, their block types and offsets.

The reader of the package ``gguf`` trusts its file and walks through lists of any length. Here every number is
checked against the size of the file before it is used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from io import SEEK_CUR
from pathlib import Path
from typing import Any, BinaryIO

import torch

from modules.model.gguf_layers import block_kinds, gguf_tensor
from modules.util.errors import UserError
from modules.util.tensors.lazy_tensors import LazyTensor, read_tensor

MAGIC, VERSIONS = b"GGUF", (2, 3)
MAX_HEADER = 1 << 26
"""Maximum bytes of names and facts. Those of an image model are below one MiB."""
MAX_TENSORS, MAX_FACTS, MAX_NAME, MAX_AXES = 1 << 16, 1 << 16, 1 << 10, 4
MAX_LIST = 8
"""Maximum length of lists that are read, such as shapes. Longer ones are skipped."""
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Numeric types of facts, in the notation of ``struct``."""
_TEXT, _LIST = 8, 9
_SHAPE = "comfy.gguf.orig_shape."
"""Prefix of facts that give the shape of a tensor that was reshaped to fit into blocks."""


class _Damaged(ValueError):
    """The fault of a header, as text."""


@dataclass
class _Header:
    """Reads values sequentially from the beginning of a file."""

    stream: BinaryIO
    left: int

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise _Damaged("its header claims more data than there is room for")
        self.left -= count
        found = self.stream.read(count)
        if len(found) < count:
            raise _Damaged("it ends within its header")
        return found

    def skip(self, count: int) -> None:
        """Skip bytes without reading them."""
        if count > self.left:
            raise _Damaged("its header claims more data than there is room for")
        self.left -= count
        self.stream.seek(count, SEEK_CUR)

    def number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))[0]

    def text(self, limit: int) -> str:
        length = self.number("Q")
        if length > limit:
            raise _Damaged(f"its header has a text of {length} bytes")
        return self.take(length).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """Read a fact. Lists of texts (``None``) and lists of more than ``MAX_LIST`` numbers (an empty list)
        are skipped.
        """
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _TEXT:
            return self.text(MAX_HEADER)
        if kind != _LIST:
            raise _Damaged(f"its header has a metadata value of the unknown type {kind}")
        inner, count = self.number("I"), self.number("Q")
        if inner in _NUMBERS:
            size = struct.calcsize(f"<{_NUMBERS[inner]}")
            if count > self.left // size:
                raise _Damaged(f"its header has a list of {count} numbers")
            if count > MAX_LIST:
                self.skip(count * size)
                return ()
            return struct.unpack(f"<{count}{_NUMBERS[inner]}", self.take(count * size))
        if inner != _TEXT or count > self.left // 8:
            raise _Damaged(f"its header has a list of {count} metadata values of the type {inner}")
        for _ in range(count):
            self.skip(self.number("Q"))
        return None


@dataclass(frozen=True)
class _Entry:
    """An entry of the tensor list: its sizes, innermost first, the number of its type, and the offset of its data."""

    sizes: tuple[int, ...]
    kind: int
    offset: int


def read_gguf(path: Path) -> tuple[dict[str, LazyTensor], dict[str, str]]:
    """Read the tensors of a GGUF file by name, left in the file, and the text facts.

    Tensors in blocks are ``GgufTensor``, unless their shape is not (rows, columns).

    Raises:
        UserError: the GGUF file is invalid, or has an unsupported number type.
    """
    kinds = block_kinds()
    size = path.stat().st_size
    try:
        with path.open("rb") as stream:
            header = _Header(stream, min(size, MAX_HEADER))
            entries, facts = _read_header(header)
            used = stream.tell()
        alignment = facts.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 16:
            raise _Damaged(f"its data are aligned to {alignment} bytes")
        start = -(-used // alignment) * alignment
        tensors, ranges = {}, []
        for name, entry in entries.items():
            kind, weights, block = _kind(path, name, entry.kind, kinds)
            tensors[name], count = _tensor(path, name, entry, (kind, weights, block), start, facts)
            ranges.append((start + entry.offset, count, name))
        _check_ranges(ranges, size)
    except _Damaged as error:
        raise UserError(f"{path} is damaged: {error}", hint="copy or download it again") from error
    return tensors, {name: value for name, value in facts.items() if isinstance(value, str)}


def _read_header(header: _Header) -> tuple[dict[str, _Entry], dict[str, Any]]:
    if header.take(4) != MAGIC:
        raise _Damaged("it does not begin as a GGUF file does")
    version = header.number("I")
    if version not in VERSIONS:
        raise _Damaged(
            f"it has version {version} of the format, but only {VERSIONS[0]} and {VERSIONS[1]} are read"
        )
    tensors, count = header.number("Q"), header.number("Q")
    if tensors > MAX_TENSORS or count > MAX_FACTS:
        raise _Damaged(f"its header claims {tensors} tensors and {count} metadata values")
    facts: dict[str, Any] = {}
    for _ in range(count):
        name = header.text(MAX_NAME)
        facts[name] = header.value(header.number("I"))
    entries: dict[str, _Entry] = {}
    for _ in range(tensors):
        name, axes = header.text(MAX_NAME), header.number("I")
        if axes > MAX_AXES:
            raise _Damaged(f"{name} has {axes} axes")
        sizes = tuple(header.number("Q") for _ in range(axes))
        if name in entries:
            raise _Damaged(f"{name} is listed twice")
        entries[name] = _Entry(sizes, header.number("I"), header.number("Q"))
    return entries, facts


def _kind(path: Path, name: str, number: int, kinds: Mapping[str, Any]) -> tuple[str, int, int]:
    """Name of the type of a tensor, and weights and bytes per block."""
    from gguf import GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(number).name
    except ValueError:
        kind = f"number {number}"
    if kind in _PLAIN:
        return kind, 1, _PLAIN[kind].itemsize
    if kind not in kinds:
        raise UserError(
            f"{path}: {name} has numbers of the type {kind}, which is not supported",
            hint=f"use a version of this model in one of {', '.join(sorted(kinds))}",
        )
    return kind, kinds[kind][0], kinds[kind][1]


def _tensor(
    path: Path,
    name: str,
    entry: _Entry,
    blocks: tuple[str, int, int],
    start: int,
    facts: Mapping[str, Any],
) -> tuple[LazyTensor, int]:
    """A tensor left in the file, and its size in bytes."""
    kind, weights, block = blocks
    shape = entry.sizes[::-1]
    columns, rows = (shape[-1] if shape else 1), math.prod(shape[:-1])
    if columns % weights:
        raise _Damaged(f"{name} has {columns} columns, not a multiple of {weights}, the size of a {kind} block")
    row_bytes = columns // weights * block
    told = facts.get(f"{_SHAPE}{name}")
    if told is not None and not _same_size(told, shape):
        raise _Damaged(f"its header gives {name} a shape of another size")
    at = start + entry.offset
    made: LazyTensor
    if kind in _PLAIN:
        made = LazyTensor(shape, _PLAIN[kind], partial(read_tensor, path, at, _PLAIN[kind], shape))
    else:

        def packed(first: int, count: int) -> torch.Tensor:
            return read_tensor(path, at + first * row_bytes, torch.uint8, (count, row_bytes))

        made = gguf_tensor((rows, columns), kind, row_bytes, packed)
    wanted = tuple(told) if told is not None else shape
    if wanted != made.shape:
        read = made.read
        made = LazyTensor(wanted, made.dtype, lambda: read().reshape(wanted))
    return made, rows * row_bytes


def _same_size(told: Any, shape: tuple[int, ...]) -> bool:
    """Return whether a fact is a shape with as many values as another shape."""
    whole = isinstance(told, tuple) and all(isinstance(each, int) and each >= 0 for each in told)
    return whole and math.prod(told) == math.prod(shape)


def _check_ranges(ranges: list[tuple[int, int, str]], size: int) -> None:
    """Refuse tensors that are outside the file or overlap, because together they would be larger than the file."""
    end = 0
    for at, count, name in sorted(ranges):
        if at < end:
            raise _Damaged(f"{name} overlaps another tensor")
        if at + count > size:
            raise _Damaged(f"it ends before {name} does: {at + count - size} bytes are missing")
        end = at + count
