"""Tensors that stay in their files until needed, and safetensors written one tensor at a time."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from modules.util.display import counted
from modules.util.errors import DataError

if TYPE_CHECKING:
    import torch

TYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
"""Torch types by their names in safetensors, in the order in which safetensors writes them, from last to first."""
ALIGNMENT = 8
MAX_HEADER = 100_000_000
"""The same limit as in the library."""


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that is read when needed, and not kept.

    Args:
        shape, dtype: shape and type of the result of ``read``.
        read: returns the tensor, on any device.
        part: returns some of its rows (first, count), if that is cheaper than reading all of it.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], torch.Tensor]
    part: Callable[[int, int], torch.Tensor] | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def rows(self, first: int, count: int) -> torch.Tensor:
        """Some of its rows, in their own memory."""
        return self.part(first, count) if self.part else self.read()[first : first + count].clone()

    def empty(self) -> torch.Tensor:
        """A tensor of the same shape and type without values."""
        import torch

        return torch.empty(self.shape, dtype=self.dtype, device="meta")

    def then(self, change: Callable[[torch.Tensor], torch.Tensor]) -> LazyTensor:
        """Apply ``change`` lazily. It is tried on a tensor without values to find the new shape and type."""
        like = change(self.empty())
        return LazyTensor(tuple(like.shape), like.dtype, lambda: change(self.read()))

    def to(self, dtype: torch.dtype | None, name: str = "a tensor") -> LazyTensor:
        """Convert to another floating-point type. Unchanged for ``None`` or for other types of numbers.

        Args:
            name: name of the tensor in the message of the error that ``read`` raises if a number is too large.
        """
        if dtype is None or dtype == self.dtype or not self.dtype.is_floating_point:
            return self
        return replace(self, dtype=dtype, read=lambda: converted(self.read(), dtype, name), part=None)


def converted(tensor: torch.Tensor, dtype: torch.dtype | None, name: str) -> torch.Tensor:
    """Convert a tensor that is to be saved to another type; ``None`` keeps its type.

    Raises:
        DataError: a finite number becomes infinite, because it is too large for the type.
    """
    import torch

    made = tensor if dtype is None else tensor.to(dtype)
    if not (made.is_floating_point() and tensor.is_floating_point()):
        return made
    limit = torch.finfo(made.dtype).max
    if limit >= torch.finfo(tensor.dtype).max:
        return made
    # torch has few operations for numbers of 8 bits
    wide = made if made.dtype.itemsize > 1 else made.float()
    # both are NaN if any number is; they need no memory
    if not wide.numel() or all(bool(end.isfinite()) for end in wide.aminmax()):
        return made
    lost = tensor.isfinite() & ~wide.isfinite()
    if bool(lost.any()):
        raise DataError(
            f"{counted(int(lost.sum()), 'number')} of {name} cannot be saved in "
            f"{str(made.dtype).removeprefix('torch.')}, whose largest number is {limit:.6g}: the largest here is "
            f"{float(tensor[lost].abs().max()):.6g}",
            hint="save in BFLOAT_16 or FLOAT_32: set --dtype of the command, or output_dtype of the config. A run "
            "can then be resumed with continue_last_backup",
        )
    return made


def lazily(tensor: torch.Tensor) -> LazyTensor:
    """Wrap a tensor that is already in memory."""
    return LazyTensor(tuple(tensor.shape), tensor.dtype, tensor.detach)


def file_tensors(path: Path) -> dict[str, LazyTensor]:
    """The tensors of a safetensors file that the library has validated. They are read rather than mapped, so
    that earlier reads take no memory.

    Raises:
        ValueError: the header is invalid, or has a type unknown to torch.
    """
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length <= MAX_HEADER:
            raise ValueError("no header")
        header = json.loads(_bytes(stream, length))
    return {name: _entry(path, 8 + length, facts) for name, facts in header.items() if name != "__metadata__"}


def _entry(path: Path, start: int, facts: Mapping[str, Any]) -> LazyTensor:
    import torch

    if facts["dtype"] not in TYPES:
        raise ValueError(f"numbers of the type {facts['dtype']}")
    dtype: torch.dtype = getattr(torch, TYPES[facts["dtype"]])
    shape, offset = tuple(facts["shape"]), start + facts["data_offsets"][0]
    row = math.prod(shape[1:]) * dtype.itemsize

    return LazyTensor(
        shape,
        dtype,
        lambda: read_tensor(path, offset, dtype, shape),
        lambda first, count: read_tensor(path, offset + first * row, dtype, (count, *shape[1:])),
    )


def read_tensor(path: Path, at: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Read a contiguous tensor at an offset of a file into its own memory.

    Raises:
        OSError: the file is too short.
    """
    import torch

    count = math.prod(shape) * dtype.itemsize
    if not count:
        return torch.empty(shape, dtype=dtype)
    with path.open("rb") as stream:
        stream.seek(at)
        return torch.frombuffer(_bytes(stream, count), dtype=torch.uint8).view(dtype).reshape(shape)


def _bytes(stream: BinaryIO, count: int) -> bytearray:
    """Read ``count`` bytes of a file. Raises ``OSError`` if it is too short."""
    buffer = bytearray(count)
    view, done = memoryview(buffer), 0
    while done < count:
        more = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not more:
            raise OSError(f"{stream.name} has become shorter")
        done += more
    return buffer


def file_order(dtypes: Mapping[str, torch.dtype]) -> list[str]:
    """Names of tensors in the order in which safetensors writes them: by type, then name."""
    ranks = {f"torch.{name}": rank for rank, name in enumerate(TYPES.values())}
    return sorted(dtypes, key=lambda name: (-ranks.get(str(dtypes[name]), 0), name))


def write_lazily(
    tensors: Mapping[str, LazyTensor],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a safetensors file in place, as the library does, with one tensor in memory at a time.

    Raises:
        OSError: the disk is full or not writable.
    """
    kinds = {value: key for key, value in TYPES.items()}
    order = file_order({name: entry.dtype for name, entry in tensors.items()})
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        start, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": kinds[str(tensors[name].dtype).removeprefix("torch.")],
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % ALIGNMENT)
    with Path(path).open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            stream.write(_raw(name, tensors[name]))


def _raw(name: str, entry: LazyTensor) -> memoryview:
    """The bytes of a tensor. Raises ``RuntimeError`` if its type or shape differs from what was announced."""
    import torch

    tensor = entry.read().detach().to("cpu").contiguous()
    if tuple(tensor.shape) != entry.shape or tensor.dtype != entry.dtype:
        raise RuntimeError(f"{name} is {tuple(tensor.shape)} {tensor.dtype}, not {entry.shape} {entry.dtype}")
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
