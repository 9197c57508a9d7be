"""Tiny GGUF files, written by the format's own package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

KINDS = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
"""The kinds of blocks that the package can make."""


def write_gguf(
    path: Path, state: Mapping[str, torch.Tensor], kinds: tuple[str, ...] = ("Q8_0",)
) -> dict[str, torch.Tensor]:
    """Write tensors to a GGUF file: matrices that fit into blocks of the kinds, one kind after another, the rest
    in 32 bits.

    Returns:
        The numbers the file stands for, as the package itself reads them, by name.
    """
    import gguf

    writer = gguf.GGUFWriter(str(path), "flux")
    stands_for: dict[str, torch.Tensor] = {}
    count = 0
    for name, tensor in state.items():
        numbers = tensor.float().numpy()
        if tensor.dim() == 2 and tensor.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType[kinds[count % len(kinds)]]
            count += 1
            packed = gguf.quants.quantize(numbers, kind)
            writer.add_tensor(name, packed, raw_dtype=kind)
            numbers = gguf.quants.dequantize(packed, kind)
        else:
            writer.add_tensor(name, numbers)
        stands_for[name] = torch.from_numpy(numbers.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stands_for
