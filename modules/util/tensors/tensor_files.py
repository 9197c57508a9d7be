"""Files of tensors whose writing fails as every other file's does: with an ``OSError``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def write_safetensors(
    tensors: Mapping[str, torch.Tensor],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write tensors as safetensors, in place.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(ready, path, metadata=None if metadata is None else dict(metadata))
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error


def write_torch(data: Any, path: str | os.PathLike[str]) -> None:
    """``torch.save``, in place.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    import torch

    try:
        with Path(path).open("wb") as stream:
            torch.save(data, stream)
    except RuntimeError as error:
        # torch closes its archive after a failed write and complains about that instead
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
