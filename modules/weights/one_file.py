"""A model as a single file: the whole model if the family is published that way, otherwise only its denoiser.

The denoiser's file has the names and the joined tensors of the checkpoint the family was published as,
without a prefix. Programs that take text encoders and autoencoder from files of their own read it, and so
does this one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch

from modules.model.lazy_modules import lazy_base_tensors
from modules.model.Model import Model
from modules.spec.FamilySpec import FamilySpec
from modules.util.errors import ConfigError
from modules.util.tensors.lazy_tensors import LazyTensor
from modules.weights.part_files import Piece, denoiser_pieces
from modules.weights.saving import no_single_file, single_file_tensors, write_file

Pieces = Sequence[tuple[Piece, LazyTensor]]


def file_parts(spec: FamilySpec) -> tuple[str, ...]:
    """The parts in a file of the family."""
    if spec.writes_single_file:
        return spec.module_parts
    return (spec.denoiser, *(part.name for part in spec.parts if part.inside))


def check_trained(spec: FamilySpec, trained: Collection[str]) -> None:
    """Raise ``ConfigError`` if a trained part is not stored in a file of the family."""
    lost = [part for part in trained if part not in file_parts(spec)]
    if lost:
        raise ConfigError(
            f"a file of {spec.label} holds only the {spec.denoiser}, but {' and '.join(lost)} is trained too",
            field="output_model_format",
            hint="use DIFFUSERS",
        )


def file_tensors(model: Model, dtype: torch.dtype | None = None) -> dict[str, LazyTensor]:
    """The tensors that ``save_file`` writes.

    Raises:
        UnsupportedError: the tensors cannot be joined into the published ones.
    """
    if model.spec.writes_single_file:
        return single_file_tensors(model, dtype)
    entries = lazy_base_tensors(model.denoiser)
    joined: dict[str, list[tuple[Piece, LazyTensor]]] = {}
    try:
        places = denoiser_pieces(model.spec, model.denoiser, entries)
    except KeyError as error:
        # a layer that others are joined with is missing
        raise no_single_file(model.spec) from error
    for key, piece in places.items():
        joined.setdefault(piece.names[0], []).append((piece, entries[key]))
    made = {name: _joined(model.spec, pieces) for name, pieces in joined.items()}
    for part in model.spec.parts:
        if part.inside and part.name in model.modules():
            stored = lazy_base_tensors(model.module(part.name))
            made |= {f"{part.inside}{name}": tensor for name, tensor in stored.items()}
    return {name: tensor.to(dtype, name) for name, tensor in made.items()}


def save_file(
    model: Model,
    path: str | Path,
    dtype: torch.dtype | None = None,
    metadata: Mapping[str, str] | None = None,
    replace: bool = True,
) -> Path:
    """Write one safetensors file, as ``atomic_path`` does, one tensor in memory at a time.

    Raises:
        UnsupportedError: the tensors cannot be joined into the published ones.
    """
    return write_file(model, file_tensors(model, dtype), path, metadata, replace)


def _joined(spec: FamilySpec, pieces: Pieces) -> LazyTensor:
    """Join pieces into the published tensor. Raises ``UnsupportedError`` if they are incomplete or do not match."""
    pieces = sorted(pieces, key=lambda found: found[0].start)
    (first, entry), rest = pieces[0], pieces[1:]
    if not first.rows:
        if rest:
            raise no_single_file(spec)
        if first.flat:
            return entry.then(torch.flatten)
        return entry.then(_swapped) if first.swapped else entry
    row = 0
    for piece, tensor in pieces:
        if piece.start != row or tensor.shape[0] != piece.rows or tensor.shape[1:] != entry.shape[1:]:
            raise no_single_file(spec)
        row += piece.rows
    if row != first.total:
        raise no_single_file(spec)
    # the wider of two types holds both without loss
    dtype = entry.dtype
    for _, tensor in rest:
        dtype = torch.promote_types(dtype, tensor.dtype)
    shape = (row, *entry.shape[1:])
    return LazyTensor(shape, dtype, lambda: torch.cat([tensor.read().to(dtype) for _, tensor in pieces]))


def _swapped(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat(tensor.chunk(2)[::-1])
