"""Adapters and models rewritten in other layouts, and adapters merged into models."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from modules.adapter.formats import (
    DIFFUSERS_METADATA,
    diffusers_metadata,
    file_layers,
    get_layout,
    layout_tensors,
    spec_metadata,
)
from modules.adapter.PeftAdapter import NAME, AdapterHandle, AdapterOptions, attach
from modules.adapter.reading import find_adapter, match_adapter, read_adapter, read_tensors
from modules.model.dtypes import PartDtypes
from modules.model.family import FamilySpec
from modules.model.Model import Model
from modules.model.saving import no_single_file, save_folder, save_single_file
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import MODEL_SETUPS, create_model_setup
from modules.modelSetup.skeleton import skeleton
from modules.util.errors import ConfigError, DataError, UnsupportedError, UserError
from modules.util.jsonio import atomic_path
from modules.util.tensor_files import write_safetensors

Report = Callable[[str], None]
PICKLED = (".ckpt", ".pt", ".pth", ".bin")


def check_target(target: Path, source: Path, force: bool) -> None:
    """``UserError`` unless something may be written at ``target``."""
    if target.exists() and source.exists() and target.resolve() == source.resolve():
        raise UserError(f"{target} is what is to be read", hint="choose another name")
    if target.is_dir() and not (target / "model_index.json").is_file():
        raise UserError(f"{target} is a folder and no model: it will not be replaced")
    if target.exists() and not force:
        raise UserError(f"{target} exists already", hint="choose another name, or replace it with --force")


def find_family(metadata: dict[str, str], given: str | None) -> BaseModelSetup:
    """The setup of the family that is given, or else named by the file.

    Raises:
        ConfigError: neither.
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


def convert_adapter(
    source: Path,
    target: Path,
    layout: str,
    family: str | None = None,
    base: Path | None = None,
    dtype: torch.dtype | None = None,
    report: Report = lambda _: None,
) -> None:
    """Rewrite an adapter file in another layout.

    Args:
        base: folder or file of the model it is for. Names and shapes are all that is taken from it; a folder's
            weights are not even read.
        dtype: of the weights; as they are if ``None``.
    """
    shape = get_layout(layout)
    find_adapter(source)
    report(f"reading {source}")
    tensors, metadata = read_tensors(source)
    setup = find_family(metadata, family)
    model = setup.load(str(base)) if base is not None and base.is_file() else skeleton(setup.spec, base)
    file = match_adapter(tensors, metadata, model, str(source))
    report(f"{file.kind} on {len(file.layers)} layers of {setup.spec.label}")
    layers = file_layers(file)
    made = layout_tensors(model, file.kind, layers, layout, dtype)
    title = metadata.get("modelspec.title", target.stem)
    kept = {key: value for key, value in metadata.items() if key != DIFFUSERS_METADATA}
    fresh = spec_metadata(model, made, title)
    facts = fresh | kept | {"modelspec.hash_sha256": fresh["modelspec.hash_sha256"]}
    if not shape.alpha:
        facts |= diffusers_metadata(
            {place: (layer.rank, "dora_scale" in layer.tensors) for place, layer in layers.items()}
        )
    report(f"writing {target}")
    with atomic_path(target) as temporary:
        write_safetensors(made, temporary, facts)


def convert_checkpoint(
    source: str,
    target: Path,
    family: str,
    kind: str,
    dtype: torch.dtype | None = None,
    report: Report = lambda _: None,
) -> None:
    """Rewrite a whole model: ``kind`` is DIFFUSERS (a folder) or SAFETENSORS (one file)."""
    setup = create_model_setup(family)
    _check_kind(setup.spec, kind)
    report(f"reading {source}")
    model = setup.load(source, stored_dtypes(source, setup.spec))
    write_model(model, target, kind, dtype, report)


def merge_adapter(
    base: str,
    adapter: Path,
    target: Path,
    family: str,
    kind: str,
    strength: float = 1.0,
    dtype: torch.dtype | None = None,
    report: Report = lambda _: None,
) -> None:
    """Write a model with the change of an adapter, times ``strength``, added to its weights."""
    setup = create_model_setup(family)
    _check_kind(setup.spec, kind)
    find_adapter(adapter)
    report(f"reading {base}")
    model = setup.load(base, stored_dtypes(base, setup.spec))
    handle = attach(model, AdapterOptions(parts=(setup.spec.denoiser,)), read_adapter(adapter, model))
    report(f"merging {handle.options.kind} into {len(handle.layers)} layers")
    merge(handle, strength)
    write_model(model, target, kind, dtype, report)


@torch.no_grad()
def merge(handle: AdapterHandle, strength: float) -> None:
    """Add the change that adapters make to the base weights of their layers, times ``strength``.

    Computed in float32, layer by layer. The adapters stay attached, and switched off by having been merged.
    """
    for layer in handle.layers.values():
        base: Any = layer.get_base_layer()
        stored = base.weight.data
        base.weight.data = stored.float()
        before = base.weight.data.clone()
        layer.merge(safe_merge=True, adapter_names=[NAME])
        merged = before + strength * (base.weight.data - before)
        base.weight.data = merged.to(stored.dtype)


def write_model(model: Model, target: Path, kind: str, dtype: torch.dtype | None, report: Report) -> None:
    """Write a whole model as DIFFUSERS or SAFETENSORS."""
    report(f"writing {target}")
    if kind == "DIFFUSERS":
        save_folder(model, target, dtype)
    else:
        save_single_file(model, target, dtype)


def _check_kind(spec: FamilySpec, kind: str) -> None:
    if kind == "SAFETENSORS" and not spec.writes_single_file:
        raise no_single_file(spec)


def stored_dtypes(source: str, spec: FamilySpec) -> PartDtypes:
    """The number types a model's weights are stored in, so that none is changed by loading it."""
    path = Path(source)
    if path.is_file():
        return PartDtypes(default=_first_dtype(path) or torch.float32)
    found = {name: _first_dtype(*sorted((path / name).glob("*.safetensors"))) for name in spec.module_parts}
    return PartDtypes(weights={name: dtype for name, dtype in found.items() if dtype is not None})


def _first_dtype(*files: Path) -> torch.dtype | None:
    """The type of the first tensor of floating-point numbers."""
    from safetensors import SafetensorError, safe_open

    for file in files:
        try:
            with safe_open(str(file), framework="pt") as opened:
                for key in opened.keys():  # noqa: SIM118
                    dtype: torch.dtype = opened.get_tensor(key).dtype
                    if dtype.is_floating_point:
                        return dtype
        except (SafetensorError, OSError) as error:
            raise DataError(f"{file} is damaged: {error}", hint="copy or download it again") from error
    return None


def convert_pickle(source: Path, target: Path, report: Report = lambda _: None) -> None:
    """Write the tensors of a pickle as safetensors under the same names. Nothing in the pickle is run.

    Raises:
        DataError: not there, no pickle of tensors, or one that asks for anything else to be run.
    """
    if not source.is_file():
        raise DataError(f"{source} does not exist", hint="check the path")
    if source.suffix.lower() not in PICKLED:
        raise UnsupportedError(f"{source} is no pickle: those end in {', '.join(PICKLED)}")
    report(f"reading {source}")
    try:
        content = torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{source} was refused: it holds more than tensors, and opening it would run a program hidden in it",
            hint="get a safetensors version from a source you trust",
        ) from error
    except (RuntimeError, EOFError, ValueError, OSError, KeyError, IndexError, AttributeError) as error:
        raise DataError(f"{source} cannot be read: {str(error).strip().splitlines()[0]}") from error
    inner = content.get("state_dict") if isinstance(content, dict) else None
    entries = inner if isinstance(inner, dict) else content
    if not isinstance(entries, dict):
        raise DataError(f"{source} holds no table of tensors")
    # clone: what shares memory cannot be written
    tensors = {str(key): value.clone() for key, value in entries.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise DataError(f"{source} holds no tensors")
    others = sorted(str(key) for key, value in entries.items() if not isinstance(value, torch.Tensor))
    if others:
        report(f"left out, because they are no tensors: {', '.join(others[:10])}")
    report(f"writing {len(tensors)} tensors to {target}")
    with atomic_path(target) as temporary:
        write_safetensors(tensors, temporary, {"format": "pt"})
