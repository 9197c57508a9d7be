"""Merges several LoRAs into one, and extracts the difference of two models as a LoRA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from modules.adapter.AdapterFile import AdapterFile
from modules.adapter.digests import digests
from modules.adapter.formats import diffusers_metadata, get_layout, layout_tensors, spec_metadata
from modules.adapter.fusion import LayerAdapter
from modules.adapter.layers import adaptable_layers
from modules.adapter.names import Place
from modules.adapter.reading import find_adapter, match_adapter, read_tensors
from modules.model.lazy_modules import lazy_base_tensors
from modules.model.Model import Model
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.converting import Report, find_family, layers_of, load_lazily
from modules.modelSetup.registry import create_model_setup
from modules.util.display import counted
from modules.util.errors import DataError, UnsupportedError
from modules.util.jsonio import atomic_path
from modules.util.rng import generator
from modules.util.tensors.lazy_tensors import LazyTensor
from modules.util.tensors.tensor_files import write_safetensors

OVERSAMPLED = 16
POWERS = 4
STREAM = "low rank"


class Factors(NamedTuple):
    """A matrix as a product.

    Args:
        up: (out, rank). down: (rank, in).
    """

    up: torch.Tensor
    down: torch.Tensor


class Made(NamedTuple):
    """A LoRA that is not yet written."""

    model: Model
    layers: dict[Place, LayerAdapter]
    notes: list[str]


def best_factors(matrix: torch.Tensor, rank: int) -> Factors:
    """The best approximation of a matrix by one of lower rank, by singular values, which are split between
    both factors.

    Large matrices are first projected onto their main directions (Halko, Martinsson and Tropp 2011, arXiv
    0909.4061, algorithm 4.4). Matrices of at most this rank are reproduced exactly.
    """
    out, inside = matrix.shape
    rank, wide = min(rank, out, inside), rank + OVERSAMPLED
    if min(out, inside) <= 4 * wide:
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    else:
        start = torch.randn(inside, wide, generator=generator(STREAM, 0, out, inside, rank))
        basis = torch.linalg.qr(matrix @ start)[0]
        for _ in range(POWERS):
            basis = torch.linalg.qr(matrix @ torch.linalg.qr(matrix.T @ basis)[0])[0]
        small, values, right = torch.linalg.svd(basis.T @ matrix, full_matrices=False)
        left = basis @ small
    roots = values[:rank].sqrt()
    return Factors(left[:, :rank] * roots, roots[:, None] * right[:rank])


def best_of_product(factors: Factors, rank: int) -> Factors:
    """The best approximation of a product by one of lower rank, without computing the product itself."""
    if rank >= factors.up.shape[1]:
        return factors
    left, above = torch.linalg.qr(factors.up)
    right, below = torch.linalg.qr(factors.down.T)
    small = best_factors(above @ below.T, rank)
    return Factors(left @ small.up, small.down @ right.T)


def add_adapters(
    files: Sequence[tuple[Path, float]], family: str | None, base: Path | None, rank: int | None
) -> Made:
    """The sum of LoRAs, each times its strength.

    Args:
        base: folder or file of their model; only names and shapes are read.
        rank: rank of the sum, by singular values; ``None`` is exact, with all ranks added.

    Raises:
        UserError: a file is not a LoRA of this model, or has magnitudes (DoRA).
    """
    for path, _ in files:
        find_adapter(path)
    read = [(path, *read_tensors(path)) for path, _ in files]
    setup = find_family(read[0][2], family)
    model = layers_of(setup, base)
    notes: list[str] = []
    matched: list[tuple[AdapterFile, float]] = []
    for (path, tensors, metadata), (_, strength) in zip(read, files, strict=True):
        file = match_adapter(tensors, metadata, model, str(path))
        notes += [*file.notes, *file.left_out()]
        matched.append((file, strength))
    return Made(model, summed(matched, rank), notes)


def summed(files: Sequence[tuple[AdapterFile, float]], rank: int | None = None) -> dict[Place, LayerAdapter]:
    """The layers of the sum of LoRAs of one model, each times its strength.

    Args:
        rank: rank of the sum, by singular values; ``None`` is exact, with all ranks added.

    Raises:
        UnsupportedError: an adapter is not a plain LoRA.
    """
    sums: dict[Place, list[Factors]] = {}
    shapes: dict[Place, tuple[int, ...]] = {}
    for file, strength in files:
        _check_plain(file)
        for place, layer in file.layers.items():
            down = layer.tensors["lora_A"].float()
            up = layer.tensors["lora_B"].float().flatten(1) * (layer.scaling * strength)
            sums.setdefault(place, []).append(Factors(up, down.flatten(1)))
            shapes[place] = tuple(down.shape[1:])
    layers = {}
    for place, parts in sums.items():
        whole = Factors(torch.cat([one.up for one in parts], 1), torch.cat([one.down for one in parts], 0))
        layers[place] = _layer(whole if rank is None else best_of_product(whole, rank), shapes[place])
    return layers


def _check_plain(file: AdapterFile) -> None:
    if file.kind != "LORA" or file.decomposed:
        kind = "a DoRA" if file.decomposed else f"of the kind {file.kind}"
        raise UnsupportedError(
            f"{file.source} is {kind}: only plain LoRAs can be added",
            hint="merge it into the model instead, and extract a LoRA from that",
        )


def _layer(factors: Factors, shape: Sequence[int]) -> LayerAdapter:
    rank = factors.down.shape[0]
    up = factors.up.reshape(-1, rank, *[1] * (len(shape) - 1))
    return LayerAdapter({"lora_A": factors.down.reshape(rank, *shape), "lora_B": up}, float(rank), rank)


@torch.no_grad()
def extract_adapter(
    base: str, tuned: str, family: str, rank: int, progress: Callable[[int, int, str], None]
) -> Made:
    """Extract the LoRA that approximately turns one model into another.

    Args:
        rank: rank of every layer; exact if the models differ by no more.
        progress: called with the number of layers done, their total, and the next layer.

    Raises:
        UserError: a model is unreadable, or they are of different shapes, or equal.
    """
    setup = create_model_setup(family)
    first, second = (load_lazily(source, setup, "SAFETENSORS", False, {}) for source in (base, tuned))
    places, others = _common_layers(setup, first, second)
    layers: dict[Place, LayerAdapter] = {}
    kept, lost = [], 0
    for number, (part, path) in enumerate(places):
        progress(number, len(places), f"{part}.{path}")
        old, new = (_tensors(model, part)[f"{path}.weight"] for model in (first, second))
        if old.shape != new.shape:
            raise DataError(
                f"{part}.{path} has the shape {tuple(old.shape)} in {base} and {tuple(new.shape)} in {tuned}",
                hint="both have to be models of the same kind",
            )
        change = new.read().float() - old.read().float()
        if not torch.isfinite(change).all():
            raise DataError(f"{part}.{path} holds NaN or infinite values", hint="use other weights")
        size = float(change.square().sum())
        if size > 0.0:
            flat = change.flatten(1)
            factors = best_factors(flat, rank)
            layers[part, path] = _layer(factors, change.shape[1:])
            kept.append(1.0 - float((flat - factors.up @ factors.down).square().sum()) / size)
    if not layers:
        raise DataError(f"{base} and {tuned} have the same layers", hint="choose two models that differ")
    for part, name in others:
        old, new = (_tensors(model, part)[name] for model in (first, second))
        lost += old.shape != new.shape or not torch.equal(old.read().float(), new.read().float())
    notes = [
        f"{100 * sum(kept) / len(kept):.1f} % of the change is in the adapter, {100 * min(kept):.1f} % at least"
    ]
    if lost:
        notes.append(
            f"{counted(lost, 'bias or norm differs', 'biases and norms differ')} too: a LoRA has none"
        )
    return Made(first, layers, notes)


def _tensors(model: Model, part: str) -> Mapping[str, LazyTensor]:
    return lazy_base_tensors(model.module(part))


def _common_layers(
    setup: BaseModelSetup, first: Model, second: Model
) -> tuple[list[Place], list[tuple[str, str]]]:
    """The layers that both models have, and the names of other tensors that both have."""
    places: list[Place] = []
    others: list[tuple[str, str]] = []
    for part in (setup.spec.denoiser, *setup.spec.text_encoders):
        if part not in first.modules() or part not in second.modules():
            continue
        names = _tensors(first, part).keys() & _tensors(second, part).keys()
        paths = [path for path in adaptable_layers(first.module(part)) if f"{path}.weight" in names]
        places += [(part, path) for path in paths]
        weights = {f"{path}.weight" for path in paths}
        others += [(part, name) for name in sorted(names - weights)]
    return places, others


def write_adapter(
    made: Made, target: Path, layout: str, dtype: torch.dtype | None, report: Report, replace: bool
) -> None:
    """Write a LoRA in a layout; ``replace`` as for ``atomic_path``."""
    tensors = layout_tensors(made.model, "LORA", made.layers, layout, dtype)
    facts = spec_metadata(made.model, target.stem)
    if not get_layout(layout).alpha:
        facts |= diffusers_metadata({place: (layer.rank, False) for place, layer in made.layers.items()})
    report(f"writing {target}")
    with atomic_path(target, replace) as temporary:
        write_safetensors(tensors, temporary, facts | digests(tensors, facts))
