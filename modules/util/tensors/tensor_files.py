"""Files of tensors. Failed writes raise ``OSError``, as for any other file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.util.tensors.lazy_tensors import file_order

if TYPE_CHECKING:
    import torch


DIGEST = "tensors_sha256"
"""Key of ``tensor_hash`` in the metadata of the program's own files."""


def write_safetensors(
    tensors: Mapping[str, torch.Tensor],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write tensors as safetensors, in place.

    Raises:
        OSError: the disk is full or not writable.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(ready, path, metadata=None if metadata is None else dict(metadata))
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error


def tensor_hash(tensors: Mapping[str, torch.Tensor]) -> str:
    """``0x`` followed by the SHA-256 of all bytes after the header of a safetensors file with these tensors."""
    return hash_in_order(tensors, file_order({name: tensor.dtype for name, tensor in tensors.items()}))


def hash_in_order(tensors: Mapping[str, torch.Tensor], order: Iterable[str]) -> str:
    """``0x`` followed by the SHA-256 of the bytes of the tensors, one after the other."""
    import torch

    hasher = hashlib.sha256()
    for name in order:
        raw = tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8)
        hasher.update(raw.numpy().data)
    return f"0x{hasher.hexdigest()}"


def write_torch(data: Any, path: str | os.PathLike[str]) -> None:
    """``torch.save``, in place.

    Raises:
        OSError: the disk is full or not writable.
    """
    import torch

    try:
        with Path(path).open("wb") as stream:
            torch.save(data, stream)
    except RuntimeError as error:
        # torch closes its archive after a failed write and reports that instead
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
