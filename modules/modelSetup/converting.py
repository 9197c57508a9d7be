"""Converts adapters and models to other layouts, and merges adapters into models."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from modules.adapter.AdapterFile import AdapterFile
from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.digests import DIFFUSERS_METADATA, digests
from modules.adapter.embedding_files import bundle_tensors
from modules.adapter.formats import (
    diffusers_metadata,
    get_layout,
    layout_tensors,
    spec_metadata,
)
from modules.adapter.names import Place
from modules.adapter.PeftAdapter import NAME, attach
from modules.adapter.reading import find_adapter, match_adapter, read_adapter, read_tensors
from modules.model.dtypes import PartDtypes
from modules.model.gguf_layers import GgufTensor
from modules.model.lazy_modules import lazy_base_tensors, replace_tensor
from modules.model.Model import Model
from modules.model.weight_files import checkpoint_entries, open_weights
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import MODEL_SETUPS, create_model_setup
from modules.util.display import counted
from modules.util.errors import ConfigError, DataError, UnsupportedError, UserError, blamed_on
from modules.util.files.result_file import check_result_folder
from modules.util.jsonio import atomic_path
from modules.util.owned_files import TEMPORARY, Owned
from modules.util.pairs.dpo_pair_files import free_bytes
from modules.util.tensors.lazy_tensors import TYPES, LazyTensor, converted, lazily, write_lazily
from modules.util.tensors.tensor_files import write_safetensors
from modules.weights import one_file
from modules.weights.part_files import part_tensors as tensors_of_part
from modules.weights.saving import part_tensors, save_folder
from modules.weights.skeleton import skeleton

Report = Callable[[str], None]
PICKLED = (".ckpt", ".pt", ".pth", ".bin")


def check_target(
    target: Path, source: Path, force: bool, folder: bool = False, option: str = "--force"
) -> None:
    """Raise ``UserError`` unless ``target`` may be written.

    Args:
        force: whether a file, or a folder written by this program, may be replaced.
        folder: whether a folder is to be written.
        option: name of ``force`` on the command line.
    """
    if target.exists() and source.exists() and target.resolve() == source.resolve():
        raise UserError(f"{target} is the input itself", hint="choose another name")
    if os.path.lexists(target) and not force:
        raise UserError(f"{target} already exists", hint=f"choose another name, or replace it with {option}")
    check_result_folder(target.parent, "target")
    owned = Owned(target.parent, local=True)
    if folder:
        owned.check_replaceable(target.name, [source])
    else:
        owned.check_writable(target.name, [source])


def clear_leftovers(target: Path) -> None:
    """Clean up what a killed conversion to the same name left: incomplete files, and a partly replaced folder."""
    owned = Owned(target.parent, local=True)
    owned.restore_folder(target.name)
    owned.sweep(TEMPORARY)


def find_family(metadata: dict[str, str], given: str | None) -> BaseModelSetup:
    """The setup of the given family, or else of the one named in the file.

    Raises:
        ConfigError: neither is known.
    """
    if given:
        return create_model_setup(given)
    named = metadata.get("modelspec.architecture", "")
    fitting = [key for key in MODEL_SETUPS.keys() if create_model_setup(key).spec.lora_architecture == named]  # noqa: SIM118
    if not fitting:
        said = f"the file names its family {named!r}" if named else "the file does not name its family"
        raise ConfigError(said, "--family", f"give one of: {', '.join(MODEL_SETUPS.keys())}")
    # those that share the name share the names of the layers
    return create_model_setup(fitting[0])


def layers_of(setup: BaseModelSetup, base: Path | None) -> Model:
    """The denoiser and the text encoders of a model, of which only names and shapes are used.

    Args:
        base: a diffusers folder, whose weights are not read, or a file, which may lack text encoders; by default the
            family as published.

    Raises:
        UserError: the base is not a model of the family, or is needed.
    """
    spec = setup.spec
    if base is None or not base.is_file():
        return skeleton(spec, base)
    file = open_weights(base, "--base")
    encoders = spec.of_kind("text_encoder")
    there = [part.name for part in encoders if tensors_of_part(file, spec, part, alone=False)]
    with blamed_on("--base"):
        return setup.load(str(base), PartDtypes(lazy=True), {spec.denoiser, *there})


def convert_adapter(
    source: Path,
    target: Path,
    layout: str,
    family: str | None = None,
    base: Path | None = None,
    dtype: torch.dtype | None = None,
    report: Report = lambda _: None,
    replace: bool = False,
) -> None:
    """Rewrite an adapter file in another layout.

    Args:
        base: folder or file of its model. Only names and shapes are used; a folder's weights are not even
            read.
        dtype: type of the weights; ``None`` keeps them.
        replace: as for ``atomic_path``.
    """
    shape = get_layout(layout)
    find_adapter(source)
    report(f"reading {source}")
    tensors, metadata = read_tensors(source)
    setup = find_family(metadata, family)
    model = layers_of(setup, base)
    file = match_adapter(tensors, metadata, model, str(source))
    for note in file.notes:
        report(note)
    report(f"{file.kind} on {counted(len(file.layers), 'layer')} of {setup.spec.label}")
    layers = file.layers
    made = layout_tensors(model, file.kind, layers, layout, dtype) | bundle_tensors(file.embeddings, dtype)
    title = metadata.get("modelspec.title", target.stem)
    kept = {key: value for key, value in metadata.items() if key != DIFFUSERS_METADATA}
    facts = spec_metadata(model, title) | kept
    if not shape.alpha:
        facts |= diffusers_metadata(
            {place: (layer.rank, "dora_scale" in layer.tensors) for place, layer in layers.items()}
        )
    report(f"writing {target}")
    with atomic_path(target, replace) as temporary:
        write_safetensors(made, temporary, facts | digests(made, facts))


def convert_checkpoint(
    source: str,
    target: Path,
    family: str,
    kind: str,
    dtype: torch.dtype | None = None,
    report: Report = lambda _: None,
    part_sources: Mapping[str, str] | None = None,
    replace: bool = False,
) -> None:
    """Rewrite a model: ``kind`` is DIFFUSERS (a folder) or SAFETENSORS (one file; see ``one_file`` for what
    is in it).

    Args:
        part_sources: part name -> another source: a file, a folder or a hub name.
        replace: whether to replace an existing target.
    """
    setup = create_model_setup(family)
    report(f"reading {source}")
    model = load_lazily(source, setup, kind, True, part_sources or {})
    write_model(model, target, kind, dtype, report, replace)


def merge_adapter(
    base: str,
    adapter: Path,
    target: Path,
    family: str,
    kind: str,
    strength: float = 1.0,
    dtype: torch.dtype | None = None,
    report: Report = lambda _: None,
    part_sources: Mapping[str, str] | None = None,
    replace: bool = False,
) -> None:
    """Write a model with the change of an adapter, times ``strength``, added to its weights.

    Args:
        part_sources: part name -> another source: a file, a folder or a hub name.
        replace: whether to replace an existing target.
    """
    setup = create_model_setup(family)
    find_adapter(adapter)
    report(f"reading {base}")
    model = load_lazily(base, setup, kind, False, part_sources or {})
    file = read_adapter(adapter, model)
    for note in (*file.notes, *file.left_out()):
        report(note)
    report_lost_layers(model, file, kind, report)
    report(f"merging {file.kind} into {counted(len(file.layers), 'layer')}")
    merge(model, [(file, strength)], dtype)
    write_model(model, target, kind, dtype, report, replace)


def report_lost_layers(model: Model, file: AdapterFile, kind: str, report: Report) -> None:
    """Report the layers of an adapter that a single file has no place for."""
    lost = [part for part in file.parts() if part not in one_file.file_parts(model.spec)]
    if kind == "SAFETENSORS" and lost:
        report(
            f"omitted: the adapter's layers of {' and '.join(lost)}, which a file of {model.spec.label} does not hold"
        )


def merge(model: Model, files: Sequence[tuple[AdapterFile, float]], dtype: torch.dtype | None = None) -> None:
    """Merge adapters lazily into those weights of a model that are in files.

    Their changes, each times its strength, are added in float32 when a weight is read, and the sum is rounded once:
    small changes would be lost if it were rounded after each adapter.

    Args:
        files: all adapters to merge, in order, with their strengths.
        dtype: type of the merged weights; ``None`` keeps that of the base.

    Raises:
        UnsupportedError: the weights are stored in GGUF blocks.
    """
    if any(
        isinstance(place, GgufTensor)
        for name in model.modules()
        for place in lazy_base_tensors(model.module(name)).values()
    ):
        raise UnsupportedError(
            f"{model.denoiser_source or model.source} is a GGUF file, and adapters are not merged into these",
            hint="merge it into the version of this model in 16 bits",
        )
    changes: dict[Place, list[tuple[AdapterFile, float]]] = {}
    for file, strength in files:
        for place in file.layers:
            changes.setdefault(place, []).append((file, strength))
    for (part, path), own in changes.items():
        module = model.module(part)
        name = f"{path}.weight"
        base = lazy_base_tensors(module)[name]
        stored_as = dtype or base.dtype
        read = partial(_merged, model, own, (part, path), base, stored_as)
        replace_tensor(module, name, replace(base, dtype=stored_as, read=read, part=None))


def _merged(
    model: Model,
    files: Sequence[tuple[AdapterFile, float]],
    place: Place,
    base: LazyTensor,
    stored_as: torch.dtype,
) -> torch.Tensor:
    """The weight of one layer with all its adapters merged."""
    weight = base.read().float()
    for file, strength in files:
        weight = _merged_with(model, file, place, weight, strength)
    return converted(weight, stored_as, f"{place[1]}.weight")


@torch.no_grad()
def _merged_with(
    model: Model, file: AdapterFile, place: Place, before: torch.Tensor, strength: float
) -> torch.Tensor:
    """A weight with one adapter merged, in float32. The layer is created, adapted and merged separately."""
    part, path = place
    layer: Any = copy.deepcopy(model.module(part).get_submodule(path))
    layer.weight, layer.bias = nn.Parameter(before, requires_grad=False), None
    own = Model(model.spec, model.source, {part: _alone(path, layer)}, model.schedule)
    only = replace(file, layers={place: file.layers[place]})
    (adapted,) = attach(own, AdapterOptions(parts=(part,)), only).layers.values()
    # creates a new weight, and leaves the old one unchanged
    adapted.merge(safe_merge=True, adapter_names=[NAME])
    merged: torch.Tensor = adapted.get_base_layer().weight.detach()
    # adapters and their layers reference each other, and would keep the weight until they are collected
    adapted.get_base_layer().weight = None
    return merged.sub_(before).mul_(strength).add_(before)


def _alone(path: str, layer: nn.Module) -> nn.Module:
    """A module with one layer, at its path."""
    for name in reversed(path.split(".")):
        holder = nn.Module()
        holder.add_module(name, layer)
        layer = holder
    return layer


def write_model(
    model: Model, target: Path, kind: str, dtype: torch.dtype | None, report: Report, replace: bool
) -> None:
    """Write a whole model as DIFFUSERS or SAFETENSORS.

    Args:
        replace: whether to replace an existing target.

    Raises:
        DataError: there is not enough disk space. UserError: the target was created meanwhile.
    """
    if kind == "DIFFUSERS":
        entries = [tensor for name in model.modules() for tensor in part_tensors(model, name, dtype).values()]
    else:
        entries = list(one_file.file_tensors(model, dtype).values())
    _check_room(target, sum(tensor.nbytes for tensor in entries))
    report(f"writing {target}")
    if kind == "DIFFUSERS":
        save_folder(model, target, dtype, replace)
    else:
        one_file.save_file(model, target, dtype, replace=replace)


def _check_room(target: Path, needed: int) -> None:
    free = free_bytes(target.parent)
    if free < needed:
        raise DataError(
            f"{target} needs {needed / 1e9:.2f} GB, and the disk has {free / 1e9:.2f} GB left",
            hint="free some space, or choose another disk; an existing file stays until the new one is complete",
        )


def load_lazily(
    source: str, setup: BaseModelSetup, kind: str, only: bool, part_sources: Mapping[str, str]
) -> Model:
    """Load the model to write with its weights left in their files, including text encoders the adapter may
    be for.

    Args:
        only: leave those text encoders out.
    """
    spec = setup.spec
    parts: set[str] | None = None
    if kind == "SAFETENSORS" and not spec.writes_single_file:
        # a file of the denoiser is enough to create one
        parts = {*one_file.file_parts(spec)}
        if not only and not Path(source).is_file():
            parts |= set(spec.text_encoders)
    return setup.load(source, PartDtypes(lazy=True), parts, part_sources=part_sources)


def convert_pickle(
    source: Path, target: Path, report: Report = lambda _: None, replace: bool = False
) -> None:
    """Write the tensors of a pickle as safetensors under the same names. No code in the pickle is run.

    Args:
        replace: as for ``atomic_path``.

    Raises:
        UserError: the file does not exist, is not a pickle of tensors, or asks to run anything else.
    """
    if not source.is_file():
        raise DataError(f"{source} does not exist", hint="check the path")
    if source.suffix.lower() not in PICKLED:
        raise UnsupportedError(f"{source} is not a pickle: its name must end in {', '.join(PICKLED)}")
    report(f"reading {source}")
    entries = checkpoint_entries(source, old=True)
    _check_storable(source, entries)
    tensors = {name: lazily(value) for name, value in entries.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise DataError(f"{source} holds no tensors")
    others = sorted(name for name in entries if name not in tensors)
    if others:
        report(f"omitted, because they are not tensors: {', '.join(others[:10])}")
    report(f"writing {counted(len(tensors), 'tensor')} to {target}")
    with atomic_path(target, replace) as temporary:
        write_lazily(tensors, temporary, {"format": "pt"})


def _check_storable(source: Path, entries: Mapping[str, Any]) -> None:
    """Raise ``UserError`` if the name or the type of a tensor cannot be in a safetensors file."""
    for name, value in entries.items():
        if not isinstance(value, torch.Tensor):
            continue
        kind = str(value.dtype).removeprefix("torch.")
        if kind not in TYPES.values():
            raise UnsupportedError(
                f"{source}: {name!a} has numbers of the type {kind}, which safetensors files cannot hold",
                hint="convert it to floating-point numbers in the program that made it",
            )
        if name == "__metadata__" or name != name.encode("utf-8", "replace").decode("utf-8"):
            raise DataError(
                f"{source}: a tensor in a safetensors file cannot be called {name!a}",
                hint="rename it in the program that made it",
            )
