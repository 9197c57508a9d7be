"""Weights in the quantised blocks of GGUF files, which are unpacked when a layer needs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import nn

from modules.model.compact import MAIN_MEMORY, FrozenLinear, roundable_layers
from modules.model.dtypes import GGUF
from modules.util.errors import UnsupportedError
from modules.util.tensors.lazy_tensors import LazyTensor

AT_ONCE = 1 << 22
"""Number of weights unpacked to float32 at a time, which bounds the temporary memory of a large layer."""

_SCALES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}
"""Offsets in a block of the 16-bit scales that multiply its integers."""


@lru_cache
def block_kinds() -> Mapping[str, tuple[int, int, Callable[..., torch.Tensor]]]:
    """The supported block types: name -> weights and bytes of a block, and the diffusers function that
    unpacks blocks (blocks, bytes).

    Raises:
        UnsupportedError: the package ``gguf`` is not installed.
    """
    try:
        from diffusers.quantizers.gguf.utils import GGML_QUANT_SIZES, dequantize_functions
    except ImportError as error:
        raise UnsupportedError(
            "GGUF files need the package gguf, which is not installed",
            hint="install the optional packages: pip install -r requirements-gpu.txt",
        ) from error
    return {
        kind.name: (*GGML_QUANT_SIZES[kind], read)
        for kind, read in dequantize_functions.items()
        if kind.name in _SCALES
    }


@torch.no_grad()
def unpacked(packed_OB: torch.Tensor, kind: str, dtype: torch.dtype) -> torch.Tensor:
    """Unpack rows of blocks (outputs, bytes) to numbers (outputs, inputs), computed in float32.

    Args:
        kind: type of the blocks, such as Q4_K.
    """
    weights, size, read = block_kinds()[kind]
    rows, columns = packed_OB.shape[0], packed_OB.shape[1] // size * weights
    made_OI = torch.empty((rows, columns), dtype=dtype, device=packed_OB.device)
    for first in range(0, rows, count := rows_at_once(columns)):
        blocks = packed_OB[first : first + count].reshape(-1, size)
        made_OI[first : first + count] = read(blocks, weights, size, torch.float32).reshape(-1, columns)
    return made_OI


def rows_at_once(columns: int) -> int:
    """Number of rows that ``unpacked`` converts at a time."""
    return max(1, AT_ONCE // max(columns, 1))


@dataclass(frozen=True, kw_only=True)
class GgufTensor(LazyTensor):
    """A tensor in blocks. ``read`` gives its numbers in float32.

    Args:
        kind: type of its blocks.
        packed: (first, count) -> the blocks of these rows, (count, row_bytes), uint8.
        row_bytes: bytes of one row.
    """

    kind: str
    packed: Callable[[int, int], torch.Tensor]
    row_bytes: int

    def blocks(self) -> torch.Tensor:
        """All its blocks, (rows, row_bytes), uint8."""
        return self.packed(0, self.shape[0])

    def cut(self, first: int, count: int, swapped: bool) -> GgufTensor:
        """Some of its rows. Blocks run along the rows, so that nothing is rounded again.

        Args:
            swapped: whether to swap the two halves of these rows.
        """

        def packed(start: int, rows: int) -> torch.Tensor:
            if not swapped:
                return self.packed(first + start, rows)
            whole = self.packed(first, count)
            return torch.cat(whole.chunk(2)[::-1])[start : start + rows]

        return gguf_tensor((count, *self.shape[1:]), self.kind, self.row_bytes, packed)


def gguf_tensor(
    shape: tuple[int, ...], kind: str, row_bytes: int, packed: Callable[[int, int], torch.Tensor]
) -> GgufTensor:
    """A matrix of shape (rows, columns) in blocks; see ``GgufTensor``."""

    def rows(first: int, count: int) -> torch.Tensor:
        return unpacked(packed(first, count), kind, torch.float32)

    return GgufTensor(
        shape, torch.float32, partial(rows, 0, shape[0]), rows, kind=kind, packed=packed, row_bytes=row_bytes
    )


class GgufLinear(FrozenLinear):
    """A frozen layer whose weight stays in quantised blocks and is unpacked in every pass.

    Args:
        layer: the layer it replaces, which may have no values.
        kind, row_bytes: type and row size of its weight's blocks.
    """

    def __init__(self, layer: nn.Linear, kind: str, row_bytes: int) -> None:
        super().__init__(layer)
        self.kind = kind
        empty = torch.empty((layer.out_features, row_bytes), dtype=torch.uint8, device="meta")
        self.weight = nn.Parameter(empty, requires_grad=False)

    @property
    def kept_as(self) -> str:
        return MAIN_MEMORY if self.stays else GGUF

    def undefined_blocks(self) -> int:
        """Number of blocks that stand for NaN or infinity, because of one of their scales."""
        bytes_NB = self.weight.detach().reshape(-1, block_kinds()[self.kind][1])
        scales = [bytes_NB[:, at : at + 2].contiguous().view(torch.float16) for at in _SCALES[self.kind]]
        return int((~torch.cat(scales, dim=1).isfinite()).any(dim=1).sum())

    def to_device(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        return unpacked(self.weight.to(device=device, non_blocking=True), self.kind, dtype)


def keep_packed(module: nn.Module, places: Mapping[str, LazyTensor]) -> dict[str, GgufTensor]:
    """Replace the layers whose weights are in blocks by layers without values that use these blocks.

    Only layers that support fewer bits are replaced (``roundable_layers``); other tensors in blocks are
    unpacked on reading.

    Args:
        places: the part's tensors in their file, by name.

    Returns:
        The weights of the replaced layers, by name.
    """
    paths: dict[int, str] = {id(layer): path for path, layer in module.named_modules()}
    kept: dict[str, GgufTensor] = {}
    for parent, name, layer in list(roundable_layers(module)):
        key = f"{paths[id(layer)]}.weight"
        tensor = places.get(key)
        if isinstance(tensor, GgufTensor):
            setattr(parent, name, GgufLinear(layer, tensor.kind, tensor.row_bytes))
            kept[key] = tensor
    if kept:
        kinds = Counter(tensor.kind for tensor in kept.values())
        # two types of blocks may have the same size, so their bytes alone do not tell their type
        told = "; ".join(f"{kind} in {count} layers" for kind, count in sorted(kinds.items()))
        module.stored_as = f"{GGUF}: {told}"  # type: ignore[assignment]
    return kept


def holds_blocks(module: nn.Module) -> bool:
    """Return whether weights of a part are stored in blocks of a GGUF file."""
    return any(isinstance(layer, GgufLinear) for layer in module.modules())
