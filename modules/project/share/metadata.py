"""The metadata of a published adapter file. It contains only the facts listed here."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path

from modules.util.errors import DataError, refused_as
from modules.util.jsonio import parse_json
from modules.util.owned_files import shown

SPEC = "1.0.1"
MOST_HEADER_BYTES = 100 << 20
KEPT = (
    "modelspec.architecture",
    "modelspec.implementation",
    "modelspec.prediction_type",
    "modelspec.hash_sha256",
    "tastemaker.layout_sha256",
    "tastemaker.adapter_type",
    "tastemaker.rank",
    "tastemaker.alpha",
    "tastemaker.rank_pattern",
    "tastemaker.alpha_pattern",
    "tastemaker.decompose",
    "tastemaker.decompose_output_axis",
    "tastemaker.rank_stabilized",
    "tastemaker.base_model_hash",
    "lora_adapter_metadata",
    "ss_v2",
    "ss_base_model_version",
)
"""Metadata to keep from the trained file: what other programs need to load it, and nothing that reveals a path."""


def read_header(path: Path) -> tuple[dict[str, object], int]:
    """Read the header of a safetensors file, and the offset of its tensors.

    Raises:
        DataError: it is not a safetensors file.
    """
    with refused_as(f"{shown(path)} cannot be read", kind=DataError), path.open("rb") as stream:
        start = stream.read(8)
        (size,) = struct.unpack("<Q", start) if len(start) == 8 else (MOST_HEADER_BYTES + 1,)
        if size > MOST_HEADER_BYTES:
            raise DataError(f"{shown(path)} is not a safetensors file", hint="train the round again")
        header = parse_json(stream.read(size), "header of the adapter")
    if not isinstance(header, dict):
        raise DataError(f"{shown(path)} is not a safetensors file", hint="train the round again")
    return header, 8 + size


def copy_with_metadata(source: Path, target: Path, facts: Mapping[str, str]) -> None:
    """Copy an adapter file, replacing its metadata by these facts and the keys in ``KEPT``.

    Tensors are copied byte by byte.
    """
    header, begin = read_header(source)
    before = header.get("__metadata__")
    kept = {name: str(before[name]) for name in KEPT if name in before} if isinstance(before, dict) else {}
    header["__metadata__"] = {**kept, **facts}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    # tensors start at a multiple of 8
    text += b" " * (-len(text) % 8)
    with source.open("rb") as reading, target.open("wb") as writing:
        reading.seek(begin)
        writing.write(struct.pack("<Q", len(text)) + text)
        while block := reading.read(1 << 20):
            writing.write(block)
        writing.flush()
        os.fsync(writing.fileno())
