"""Digests in adapter files, which reveal a damaged or changed file on reading.

``modelspec.hash_sha256`` is that of ModelSpec 1.0 (https://github.com/Stability-AI/ModelSpec): sha256 of all
bytes after the header, the same bytes that kohya's ``sshs_model_hash`` covers. It says nothing of names and
shapes, which are in the header; ``tastemaker.layout_sha256`` covers these and what else of the header the
weights depend on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from modules.util.errors import DataError
from modules.util.tensors.tensor_files import hash_in_order, tensor_hash

if TYPE_CHECKING:
    import torch

DIFFUSERS_METADATA = "lora_adapter_metadata"
"""Metadata key of diffusers: ranks and alphas, as JSON."""
PUBLISHED, LAYOUT = "modelspec.hash_sha256", "tastemaker.layout_sha256"
FIELD = "lora_model_name"


def digests(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> dict[str, str]:
    """The digests to add to the metadata of a file with these tensors and this metadata."""
    return {PUBLISHED: tensor_hash(tensors), LAYOUT: _layout_hash(tensors, metadata)}


def check_digests(
    source: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
) -> tuple[str, ...]:
    """Compare a file with its digests. A file without digests passes.

    Returns:
        A sentence about a file of another program that does not match its digest, because such programs keep
            the digest when they change a file.

    Raises:
        DataError: it was written by this program, and has changed since.
    """
    said, layout = metadata.get(PUBLISHED), metadata.get(LAYOUT)
    if _holds(tensors, said, layout is None) and layout in (None, _layout_hash(tensors, metadata)):
        return ()
    if layout is None and not any(key.startswith("tastemaker.") for key in metadata):
        return (
            f"{source}: its weights are not those that its {PUBLISHED} was written for; "
            "the file is damaged, or a program changed it and kept the value",
        )
    raise DataError(
        f"{source} is damaged, or another program changed it: its weights are not those that were saved",
        field=FIELD,
        hint="use another copy of it; models saved during training are in the save folder of its run",
    )


def _holds(tensors: Mapping[str, torch.Tensor], said: str | None, by_name: bool) -> bool:
    """Return whether these tensors match a hash.

    Args:
        by_name: they may have been hashed in the order of their names, as in files written before there was a
            layout digest.
    """
    return said in (None, tensor_hash(tensors)) or (
        by_name and said == hash_in_order(tensors, sorted(tensors))
    )


def _layout_hash(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> str:
    """``0x`` followed by the SHA-256 of names, types and shapes, and of other metadata that diffusers reads."""
    rows = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in sorted(tensors)]
    text = json.dumps([rows, metadata.get(DIFFUSERS_METADATA)])
    return f"0x{hashlib.sha256(text.encode()).hexdigest()}"
