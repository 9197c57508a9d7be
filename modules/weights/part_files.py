"""Loads one part of a model from a file of weights, in its published layout or that of diffusers.

A file tells its architecture only by the shapes of its tensors. Several configs are therefore tried: the
right one matches exactly the tensors in the file.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from modules.model.gguf_layers import GgufTensor, keep_packed
from modules.model.lazy_modules import ShapesOnly, make_lazy
from modules.model.weight_files import SCALES, WeightFile
from modules.spec.FamilySpec import FamilySpec, PartSpec
from modules.util.errors import UserError, first_line
from modules.util.jsonio import read_json
from modules.util.program_files import RESOURCES
from modules.util.tensors.lazy_tensors import LazyTensor, lazily
from modules.weights.keymaps import get_key_map
from modules.weights.loading import config_errors, part_class
from modules.weights.open_clip import lazily_from_open_clip
from modules.weights.other_kinds import NEEDLESS, refuse_strays
from modules.weights.single_file import file_prefixes, part_prefixes, squeezed, to_ldm

CONFIGS = RESOURCES / "model_config"
"""Configs of the published models, by model type and part."""
LATER_LAYERS = re.compile(r"(text_model\.)?encoder\.layers\.\d+\..*")
WEIGHT_LEAVES = ("weight", "scale")
"""Possible names of a layer's weight."""
CONVERTERS = {
    r"\.op_list\.": "convert_autoencoder_dc_checkpoint_to_diffusers",
    r"^(en|de)coder\.middle\.": "convert_wan_vae_to_diffusers",
}
"""Diffusers functions for parts without a table here, by names in their files."""
Pieces = dict[str, "Piece"]


@dataclass(frozen=True)
class PartTensors:
    """The tensors of one part in a file, without their prefix.

    Args:
        shapes: shapes of all tensors.
        read: reads one of them.
        cut: whether the file may have more layers than the part uses.
        places: the same tensors, read when needed and not kept.
    """

    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], torch.Tensor]
    cut: bool = False
    places: Mapping[str, LazyTensor] = field(default_factory=dict)

    def needless(self, name: str) -> bool:
        """Return whether a tensor may be ignored."""
        return bool(NEEDLESS.fullmatch(name)) or (self.cut and bool(LATER_LAYERS.fullmatch(name)))


@dataclass(frozen=True)
class Piece:
    """The location of a module's tensor in a file.

    Args:
        names: its possible names there.
        start, rows: its rows in that tensor; all if ``rows`` is 0.
        total: total number of rows of that tensor.
        swapped: whether its two halves of rows are in the other order there.
        flat: whether all its numbers are in one row there.
    """

    names: tuple[str, ...]
    start: int = 0
    rows: int = 0
    total: int = 0
    swapped: bool = False
    flat: bool = False

    def shape_there(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the file's tensor of which a tensor of this shape is all or some rows."""
        if self.flat:
            return (math.prod(shape),)
        return (self.total, *shape[1:]) if self.rows else tuple(shape)

    def of(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Extract this piece from a tensor of the file, in the module's shape."""
        return self._turned(
            tensor[self.start : self.start + self.rows].clone() if self.rows else tensor, shape
        )

    def place(self, tensor: LazyTensor, shape: Sequence[int]) -> LazyTensor:
        """As ``of``, for a tensor that stays in the file. GGUF blocks are sliced without reading them."""
        if isinstance(tensor, GgufTensor) and not self.flat and tuple(shape)[1:] == tensor.shape[1:]:
            return tensor.cut(self.start, shape[0], self.swapped)

        def read() -> torch.Tensor:
            rows = tensor.rows(self.start, self.rows) if self.rows else tensor.read()
            return self._turned(rows, shape)

        return LazyTensor(tuple(shape), tensor.dtype, read)

    def _turned(self, rows: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return (torch.cat(rows.chunk(2)[::-1]) if self.swapped else rows).reshape(tuple(shape))


@dataclass
class Plan:
    """The assignment of a file's tensors to a module.

    Args:
        part, config: the part to create.
        module: the module without values.
        tensors: the module's tensors -> name in the file, and which piece of that they are.
        faults: tensors that the file lacks or has in another shape.
        extra: tensors of the file that are not needed.
    """

    part: PartSpec
    config: Mapping[str, Any]
    module: nn.Module
    tensors: dict[str, tuple[str, Piece]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)

    def stored(self, tensors: PartTensors) -> dict[str, LazyTensor]:
        """The tensors of the file that the module's tensors come from, by the module's names."""
        return {
            key: tensors.places[name] for key, (name, _) in self.tensors.items() if name in tensors.places
        }

    @property
    def strays(self) -> int:
        return len(self.faults) + len(self.extra)


# -- which tensors of a file are a part's ----------------------------------------------------------------------


def part_tensors(file: WeightFile, spec: FamilySpec, part: PartSpec, alone: bool) -> PartTensors | None:
    """The tensors of a part in a file; ``None`` if the file does not contain it.

    Args:
        alone: whether the file was given for this part, so that names without a prefix belong to it.

    Raises:
        UserError: it has further tensors of the part, below another prefix.
    """
    others = tuple(
        prefix for other in spec.parts if other.inside and other != part for prefix in part_prefixes(other)
    )
    own = [name for name in file.shapes if not name.startswith(others)] if others else list(file.shapes)
    prefixes = part_prefixes(part)
    taken = next((prefix for prefix in prefixes if any(name.startswith(prefix) for name in own)), None)
    names = None if taken is None else _below(own, taken)
    if taken is not None:
        twice = [name for name in own if name.startswith(prefixes) and not name.startswith(taken)]
        refuse_strays(file.path, twice, (), f"{part.name}.model_name")
    if names is None and alone and not any(name.startswith(file_prefixes(spec)) for name in own):
        names = {name: name for name in own}
    if not names:
        return None
    if any(name.startswith("transformer.resblocks.") for name in names):
        return _lazy(
            lazily_from_open_clip({name: file.lazy(place) for name, place in names.items()}), cut=True
        )
    for mark, converter in CONVERTERS.items() if part.kind != "text_encoder" else ():
        if any(re.search(mark, name) for name in names):
            convert = getattr(importlib.import_module("diffusers.loaders.single_file_utils"), converter)
            state = convert({name: file.tensor(place) for name, place in names.items()})
            return _lazy({name: lazily(tensor) for name, tensor in state.items()})
    return PartTensors(
        {name: file.shapes[place] for name, place in names.items()},
        lambda name: file.tensor(names[name]),
        places={name: file.lazy(place) for name, place in names.items()},
    )


def folder_tensors(files: Sequence[WeightFile]) -> PartTensors:
    """The tensors of a part in a folder of its own, in any number of files. A scale may be in another file than its
    weight.

    Raises:
        UserError: it is a scale of blocks.
    """
    owners = {name: file for file in files for name in file.shapes}
    places = {name: file.lazy(name) for name, file in owners.items()}
    for scale, file in owners.items():
        layer, _, leaf = scale.rpartition(".")
        weight = f"{layer}.weight"
        if leaf in SCALES and weight in owners:
            places[weight] = owners[weight].scaled_by(weight, file, scale)
            del places[scale]
    return _lazy(places)


def _below(names: Iterable[str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): name for name in names if name.startswith(prefix)}


def _lazy(places: Mapping[str, LazyTensor], cut: bool = False) -> PartTensors:
    shapes = {name: place.shape for name, place in places.items()}
    return PartTensors(shapes, lambda name: places[name].read(), cut, places)


# -- configs ---------------------------------------------------------------------------------------------------


def beside_file(file: Path) -> Path:
    """The folder with configs that override the bundled ones for one file."""
    return file.with_name(f"{file.name}.config")


def configs(spec: FamilySpec, part: PartSpec, file: Path, base: Path | None) -> list[dict[str, Any]]:
    """Possible configs of a part in a file: only the one next to the file if it exists, else those of the
    rest of the model's folder and of the published models.

    Raises:
        UserError: a config is damaged.
    """
    given = beside_file(file) / part.place / "config.json"
    if given.is_file():
        return [_read(given)]
    places = [base / part.place / "config.json"] if base is not None else []
    return [_read(place) for place in (*places, *shipped(spec.key, part.name)) if place.is_file()]


def shipped(key: str, part: str) -> list[Path]:
    """Config files of a part in the published models, the usual one first."""
    return sorted(
        (CONFIGS / key / part).glob("*.json"), key=lambda place: (place.stem != "config", place.stem)
    )


def _read(path: Path) -> dict[str, Any]:
    config = read_json(path, "model config")
    if not isinstance(config, dict):
        raise UserError(f"{path} is not a JSON object")
    return config


@contextmanager
def without_weights() -> Iterator[None]:
    """Inside the block, new modules have parameters without memory; their buffers are real."""
    register = nn.Module.register_parameter

    def bare(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and param.device.type != "meta":
            param = nn.Parameter(param.to("meta"), requires_grad=False)
        register(self, name, param)

    nn.Module.register_parameter = bare  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def outline(part: PartSpec, config: Mapping[str, Any]) -> nn.Module:
    """Create a part whose tensors have shapes but no memory.

    Raises:
        UserError: it is not a config of such a part.
    """
    try:
        with ShapesOnly():
            return _make(part, config)
    except config_errors() as error:
        reason = first_line(error)
        raise UserError(f"a config of the {part.name} does not fit its class: {reason}") from error


def bare_module(part: PartSpec, config: Mapping[str, Any], like: nn.Module) -> nn.Module:
    """Create a module without values to be filled from a file. Computed tensors, which no file contains,
    already exist.
    """
    stored = like.state_dict()
    if all(name in stored for name, _ in like.named_buffers()) and not _has_tables(like):
        return like
    with without_weights():
        return _make(part, config)


def _has_tables(module: nn.Module) -> bool:
    """Return whether it has tensors that are neither parameters nor buffers."""
    values = [value for each in module.modules() for value in vars(each).values()]
    return any(
        isinstance(item, torch.Tensor)
        for value in values
        for item in (value if isinstance(value, list | tuple) else (value,))
    )


def _make(part: PartSpec, config: Mapping[str, Any]) -> nn.Module:
    kind = part_class(part)
    if part.of_transformers:
        return kind(kind.config_class.from_dict(dict(config)))  # type: ignore[no-any-return]
    return kind.from_config(dict(config))  # type: ignore[no-any-return]


# -- names -----------------------------------------------------------------------------------------------------


def original_pieces(spec: FamilySpec, part: PartSpec, module: nn.Module) -> Pieces:
    """The location of each tensor of a part in a file of the published layout."""
    state = module.state_dict()
    if part.of_transformers:
        return {key: Piece(_text_names(key)) for key in state}
    if part.denoises:
        # computed tensors distinguish sizes, if a file has them
        return denoiser_pieces(spec, module, state | dict(module.named_buffers()))
    if not hasattr(module.config, "down_block_types"):
        return own_pieces(module)
    return {key: Piece(_autoencoder_names(module, key, tensor)) for key, tensor in state.items()}


def own_pieces(module: nn.Module) -> Pieces:
    """The locations in a file that uses the module's own names."""
    return {key: Piece((key,)) for key in module.state_dict()}


def _autoencoder_names(module: nn.Module, key: str, tensor: torch.Tensor) -> tuple[str, ...]:
    """Statistics of latents have no other name; FLUX.2's file keeps the surrounding convolutions in both halves."""
    if key.startswith("bn."):
        return (key,)
    name = to_ldm("vae", module, key, tensor)[0]
    half = {"quant_conv": "encoder", "post_quant_conv": "decoder"}.get(name.partition(".")[0])
    return (name, f"{half}.{name}") if half else (name,)


def _text_names(key: str) -> tuple[str, ...]:
    """Text encoders keep their names, except for the level of the model itself, which varies."""
    own = key.removeprefix("text_model.").removeprefix("model.")
    plain = own.removeprefix("language_model.")
    # the last is the head of a vision-language model
    names = [key, plain, f"text_model.{plain}", f"model.{plain}", f"language_model.{plain}"]
    if plain != own:
        # transformers writes the language model of a vision-language model in either way
        names += [own, f"model.{own}", f"language_model.model.{plain}"]
    return tuple(dict.fromkeys(names))


def denoiser_pieces(
    spec: FamilySpec, module: nn.Module, state: Mapping[str, torch.Tensor | LazyTensor]
) -> Pieces:
    """As ``original_pieces``, for some tensors of a denoiser. The first name of each is the published one."""
    layers = {name for name, _ in module.named_modules()}
    return {key: _denoiser_piece(spec, module, key, state, layers) for key in state}


def _denoiser_piece(
    spec: FamilySpec,
    module: nn.Module,
    key: str,
    state: Mapping[str, torch.Tensor | LazyTensor],
    layers: set[str],
) -> Piece:
    key_map = get_key_map(spec.key_map)
    path, _, leaf = key.rpartition(".")
    if leaf not in ("weight", "bias") or path not in layers:
        # a tensor that belongs to no layer has a name of its own
        alone = key_map.original(module, key)
        return Piece((alone.name,), flat=alone.flat)
    found = key_map.original(module, path)
    leaves = dict.fromkeys((found.weight, *WEIGHT_LEAVES)) if leaf == "weight" else (leaf,)
    names = tuple(f"{found.name}.{other}" for other in leaves)
    if not found.fused:
        return Piece(names, swapped=found.swapped)
    sizes = [state[f"{piece}.{leaf}"].shape[0] for piece in found.pieces]
    place = found.pieces.index(path)
    return Piece(names, sum(sizes[:place]), sizes[place], sum(sizes))


# -- from tensors to a module ----------------------------------------------------------------------------------


def make_plan(tensors: PartTensors, plan: Plan, pieces: Pieces) -> Plan:
    """Determine which tensor of a file goes where in a module."""
    module = plan.module
    state = module.state_dict(keep_vars=True)
    same: dict[int, list[str]] = {}
    for key, parameter in state.items():
        same.setdefault(id(parameter), []).append(key)
    for key, parameter in state.items():
        # a tensor that two layers share may be stored under either name
        choices = (
            (name, pieces[other]) for other in (key, *same[id(parameter)]) for name in pieces[other].names
        )
        found = next(((name, piece) for name, piece in choices if name in tensors.shapes), None)
        if found is None:
            plan.faults.append(pieces[key].names[0])
            continue
        plan.tensors[key] = found
        name, piece = found
        shape = piece.shape_there(parameter.shape)
        if squeezed(shape) != squeezed(tensors.shapes[name]):
            plan.faults.append(f"{name}: {tuple(tensors.shapes[name])} for {shape}")
    for key, buffer in module.named_buffers():
        for name in pieces[key].names if key in pieces and key not in state else ():
            if name in tensors.shapes and squeezed(tensors.shapes[name]) != squeezed(buffer.shape):
                plan.faults.append(f"{name}: {tuple(tensors.shapes[name])} for {tuple(buffer.shape)}")
    used = {name for name, _ in plan.tensors.values()}
    plan.extra = [name for name in tensors.shapes if name not in used and not tensors.needless(name)]
    return plan


def best_plan(
    tensors: PartTensors,
    spec: FamilySpec,
    part: PartSpec,
    choices: Sequence[Mapping[str, Any]],
    folder: bool = False,
) -> Plan | None:
    """The config and layout with the fewest unmatched tensors; ``None`` without configs.

    Args:
        folder: whether the tensors come from a folder, so that the module's own names are tried first.
    """
    best: Plan | None = None
    layouts: list[Callable[[nn.Module], Pieces]] = [partial(original_pieces, spec, part), own_pieces]
    if folder:
        layouts.reverse()
    for config in choices:
        module = outline(part, config)
        for pieces_of in layouts:
            plan = make_plan(tensors, Plan(part, config, module), pieces_of(module))
            if not plan.strays:
                return plan
            if best is None or plan.strays < best.strays:
                best = plan
    return best


def keep_lazy(tensors: PartTensors, plan: Plan) -> nn.Module:
    """The plan's module without values, which stay unchanged in the file."""
    return make_lazy(plan.module, _places(tensors, plan))


def _places(tensors: PartTensors, plan: Plan) -> dict[str, LazyTensor]:
    """The locations of the values of the plan's module, by its names."""
    shapes = plan.module.state_dict()
    return {
        key: piece.place(tensors.places[name], shapes[key].shape)
        for key, (name, piece) in plan.tensors.items()
        if name in tensors.places
    }


def load_into(tensors: PartTensors, plan: Plan, dtype: torch.dtype) -> nn.Module:
    """The plan's module with the weights of the file, frozen, in eval mode. GGUF blocks stay packed."""
    places = _places(tensors, plan)
    module = bare_module(plan.part, plan.config, plan.module)
    packed = keep_packed(module, places)
    wide = tuple(getattr(module, "_keep_in_fp32_modules", None) or ()) if dtype == torch.float16 else ()
    last: tuple[str, torch.Tensor] | None = None
    shapes, state = module.state_dict(), dict[str, torch.Tensor]()
    # in file order, so that a tensor from which many are sliced is read once
    for key, (name, piece) in sorted(plan.tensors.items(), key=lambda item: item[1][0]):
        if key in packed:
            state[key] = packed[key].blocks()
            continue
        if last is None or last[0] != name:
            last = name, tensors.read(name)
        like = shapes[key]
        wanted = torch.float32 if any(word in key.split(".") for word in wide) else dtype
        made = piece.of(last[1], like.shape)
        state[key] = made.to(wanted if like.is_floating_point() else like.dtype).contiguous()
    module.load_state_dict(state, assign=True)
    if hasattr(module, "tie_weights"):
        module.tie_weights()  # type: ignore[operator]
    return module.eval().requires_grad_(False)
