"""Low-rank adapters on the parts of a model, made by peft and named after their layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from modules.adapter.AdapterFile import AdapterFile
from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.kronecker import take_factors
from modules.adapter.layers import adaptable_layers, by_pattern, check_readable, select_layers
from modules.adapter.magnitudes import measure_inputs, weaken
from modules.model.libraries import BITSANDBYTES, unseen
from modules.model.Model import Model
from modules.util.display import counted
from modules.util.errors import ConfigError, DataError, UnsupportedError, list_offenders
from modules.util.rng import digest64

if TYPE_CHECKING:
    from peft import PeftConfig

NAME = "default"
_SHOWN = 5
_POINTS = ((1,), (1, 1))


@dataclass
class AdapterHandle:
    """Adapters attached to a model.

    Args:
        layers: ``part.path`` -> peft layer, in model order.
        notes: where a loaded file overrides the options, one sentence each.
    """

    model: Model
    options: AdapterOptions
    layers: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    _whole: dict[str, float] = field(default_factory=dict)
    """Factors at strength 1."""

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every adapter parameter and buffer by a name that is stable between runs."""
        for path, layer in self.layers.items():
            for attribute, item in own_items(layer):
                if isinstance(item, nn.Module):
                    for name, tensor in [*item.named_parameters(), *item.named_buffers()]:
                        yield f"{path}.{attribute}.{name}", tensor
                else:
                    yield f"{path}.{attribute}", item

    def named_parameters(self, part: str | None = None) -> list[tuple[str, nn.Parameter]]:
        """The trained parameters by name, of one part or of all."""
        return [
            (name, tensor)
            for name, tensor in self.named_tensors()
            if isinstance(tensor, nn.Parameter) and (part is None or name.startswith(f"{part}."))
        ]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Detached references to all adapter tensors; clone them to keep them."""
        return {name: tensor.detach() for name, tensor in self.named_tensors()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy values in. Nothing is changed unless everything matches.

        Raises:
            DataError: names are missing or unknown, or shapes differ.
        """
        own = dict(self.named_tensors())
        check_same(own, state, "the adapter")
        for name, tensor in own.items():
            tensor.copy_(state[name])

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Raw base weights inside the block; ``requires_grad`` flags are not touched.

        One flag per layer is set directly, because peft's own switch would also clear ``requires_grad`` of
        every adapter tensor.
        """
        before = [layer._disable_adapters for layer in self.layers.values()]
        try:
            for layer in self.layers.values():
                layer._disable_adapters = True
            yield
        finally:
            for layer, flag in zip(self.layers.values(), before, strict=True):
                layer._disable_adapters = flag

    def scaling(self, path: str) -> float:
        """Factor on the output of the adapter at ``part.path``; 1 for types without one."""
        return float(getattr(self.layers[path], "scaling", {}).get(NAME, 1.0))

    def set_strength(self, strength: float) -> None:
        """Scale what the adapters add to the model's outputs. A later strength replaces this one.

        Raises:
            UnsupportedError: the adapters are of a type that rotates weights instead of adding to them.
        """
        for path, layer in self.layers.items():
            if self.options.decompose:
                weaken(layer, NAME, strength)
                continue
            scaling = getattr(layer, "scaling", {})
            if NAME not in scaling:
                raise UnsupportedError(
                    f"the strength of an adapter of the kind {self.options.kind} cannot be changed",
                    "--strength",
                    "leave it at 1",
                )
            scaling[NAME] = self._whole.setdefault(path, scaling[NAME]) * strength

    def rank(self, path: str) -> int:
        """The rank of the adapter at ``part.path``; for OFT_2 the size of its blocks."""
        layer = self.layers[path]
        return int(getattr(layer, "oft_block_size", layer.r)[NAME])

    def detach(self) -> None:
        """Remove the adapters and restore the model. This handle must not be used afterwards."""
        for place, layer in self.layers.items():
            part, _, path = place.partition(".")
            self.model.module(part).set_submodule(path, layer.get_base_layer())
        self.model.adapter = None
        self.model.layers_changed()


def check_same(
    own: Mapping[str, torch.Tensor],
    other: Mapping[str, torch.Tensor],
    what: str,
    field: str | None = None,
    hint: str | None = None,
) -> None:
    """Raise ``DataError`` unless both have the same names and shapes."""
    missing, unknown = sorted(own.keys() - other.keys()), sorted(other.keys() - own.keys())
    unlike = sorted(
        f"{name}: {tuple(other[name].shape)} instead of {tuple(own[name].shape)}"
        for name in own.keys() & other.keys()
        if own[name].shape != other[name].shape
    )
    faults = [("missing", missing), ("unknown", unknown), ("of another shape", unlike)]
    lines = [f"{label}:\n{list_offenders(names, _SHOWN)}" for label, names in faults if names]
    if lines:
        raise DataError(f"the saved tensors do not fit {what}; " + "\n".join(lines), field, hint)


def attach(model: Model, options: AdapterOptions, source: AdapterFile | None = None) -> AdapterHandle:
    """Attach adapters to a model and freeze everything else.

    Args:
        source: an adapter file to continue from. It determines layers, rank, alpha and type, and its values
            are loaded. What it overrides is listed in ``notes``.

    Raises:
        ConfigError: a filter matches nothing, or the model lacks a part.
        UnsupportedError: the type must read weights that are stored in a form it cannot read.
        RuntimeError: adapters are already attached.
    """
    if model.adapter is not None:
        raise RuntimeError("adapters are already attached to this model")
    layers: dict[str, Any] = {}
    notes: list[str] = []
    if source is not None:
        options, notes = source.adopt(options)
    parts = options.parts if source is None else source.parts()
    chosen = {p: targets(model, p, options) if source is None else source.paths(p) for p in parts}
    if source is None:
        ranks, alphas = _patterned(options, [f"{part}.{path}" for part in parts for path in chosen[part]])
    else:
        ranks = {f"{part}.{path}": layer.rank for (part, path), layer in source.layers.items()}
        alphas = {f"{part}.{path}": layer.alpha for (part, path), layer in source.layers.items()}
    for part, paths in chosen.items():
        bases = [model.module(part).get_submodule(path) for path in paths]
        field = "" if source is None else "lora_model_name"
        check_readable(part, bases, options.kind, options.decompose, field)
    for part, paths in chosen.items():
        module = model.module(part)
        sizes = {
            path: _size(options, f"{part}.{path}", ranks, alphas, module.get_submodule(path))
            for path in paths
        }
        for path, layer in _wrap(module, part, options, sizes).items():
            layers[f"{part}.{path}"] = layer
            if options.decompose and not options.decompose_outputs:
                measure_inputs(layer, NAME)
            if source is not None and options.kind == "LOKR":
                take_factors(f"{part}.{path}", layer, source.layers[part, path].tensors, NAME)
    handle = AdapterHandle(model, options, layers, notes)
    for path, layer in layers.items():
        _settle(path, layer, options)
    if options.kind == "OFT_2":
        notes.extend(_still(handle, source is None))
    if source is not None:
        state = source.state_for(dict(handle.named_tensors()))
        hint = "the adapter was made for a model of another size"
        check_same(dict(handle.named_tensors()), state, model.spec.label, "lora_model_name", hint)
        handle.load_state_dict(state)
    model.adapter = handle
    model.layers_changed()
    return handle


def _still(handle: AdapterHandle, new: bool) -> list[str]:
    """A sentence about layers whose blocks are 1 wide, because their width has no divisor near the size of a block.

    Raises:
        ConfigError: all layers of a new adapter are like this.
    """
    still = [path for path in handle.layers if handle.rank(path) < 2]
    if not still:
        return []
    rank, count = handle.options.rank, len(handle.layers)
    if new and len(still) == count:
        raise ConfigError(
            f"no layer can be divided into blocks of about {rank}: all {count} get blocks of 1, which have nothing to "
            "rotate, so nothing would be trained",
            field="lora_rank",
            hint="set it to a divisor of the width of the layers, such as 4, 8 or 32, or choose another peft_type",
        )
    return [
        f"{counted(len(still), 'layer')} of {count} will not be trained, because OFT_2 divides them into blocks of 1, "
        f"which have nothing to rotate ({', '.join(still[:_SHOWN])}): lora_rank {rank} is not near a divisor of their "
        "width"
    ]


def targets(model: Model, part: str, options: AdapterOptions) -> list[str]:
    """Paths of a part's layers selected by the options. Raises ``ConfigError`` for a filter that matches nothing."""
    module = model.module(part)
    if part in model.spec.text_encoders:
        unread = model.spec.part(part).unread
        return [p for p in adaptable_layers(module, convolutions=False) if not p.startswith(unread)]
    paths = select_layers(adaptable_layers(module), options.patterns, options.regex)
    if options.kind != "OFT_2":
        return paths
    # peft rotates the unfolded patches of larger kernels incorrectly: even the identity changes the output
    sizes = {path: getattr(module.get_submodule(path), "kernel_size", (1,)) for path in paths}
    rotatable = [path for path in paths if sizes[path] in _POINTS]
    if not rotatable:
        raise ConfigError(
            "OFT_2 can be attached to linear layers and 1x1 convolutions only, but the filter chose neither",
            field="layer_filter",
        )
    return rotatable


def own_items(layer: Any) -> Iterator[tuple[str, Any]]:
    """The components of a layer's adapter, each once, because peft lists DoRA's magnitude twice."""
    for attribute in dict.fromkeys(layer.adapter_layer_names):
        held = getattr(layer, attribute, {})
        if NAME in held:
            yield attribute, held[NAME]


@cache
def _prepare_peft() -> None:
    """Let peft search for its own types of layers only once, and not find those that no model here has."""
    with unseen(BITSANDBYTES):
        from peft.import_utils import is_bnb_4bit_available, is_bnb_available

        is_bnb_available()
        is_bnb_4bit_available()


def _wrap(
    module: nn.Module, part: str, options: AdapterOptions, sizes: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Freeze a part and put peft's layers around some of its own: path -> layer, in model order.

    ``peft.inject_adapter_in_model`` makes the same layers, but compares each with the expressions of all others, which
    takes minutes for large models, and walks through the model several times.

    Args:
        sizes: path -> arguments of its layer, see ``_size``.
    """
    _prepare_peft()
    settings, kinds = _settings(options, by_count=any(size["r"] for size in sizes.values()))
    bases = {path: layer for path, layer in module.named_modules() if path in sizes}
    if len(bases) != len(sizes):
        raise RuntimeError(f"{len(bases)} layers of {part} were found instead of {len(sizes)}")
    module.requires_grad_(False)
    layers: dict[str, Any] = {}
    # peft draws initial values that are replaced later; the global stream must not be affected
    with torch.random.fork_rng(devices=[]):
        for path, base in bases.items():
            made = kinds.Conv2d if isinstance(base, nn.Conv2d) else kinds.Linear
            layers[path] = made(base, NAME, config=settings, **sizes[path])
            module.set_submodule(path, layers[path])
    return layers


def _patterned(options: AdapterOptions, names: Sequence[str]) -> tuple[dict[str, int], dict[str, float]]:
    """The ranks and alphas of layers set by a pattern."""
    ranks = by_pattern(names, options.rank_pattern, options.regex, "lora_rank_pattern")
    alphas = by_pattern(names, options.alpha_pattern, options.regex, "lora_alpha_pattern")
    return {name: int(value) for name, value in ranks.items()}, alphas


def _size(
    options: AdapterOptions, name: str, ranks: Mapping[str, int], alphas: Mapping[str, float], base: Any
) -> dict[str, float]:
    """The arguments of peft's layers that may differ between layers."""
    if options.kind == "OFT_2":
        # a new adapter has the size of its blocks in the settings, which does not fit every layer; in a file, each
        # layer has its own
        inputs = base.weight[0].numel() if isinstance(base, nn.Conv2d) else base.in_features
        return {"r": max(1, inputs // ranks[name]) if name in ranks else 0}
    alpha = "lora_alpha" if options.kind == "LORA" else "alpha"
    return {"r": ranks.get(name, options.rank), alpha: alphas.get(name, options.alpha)}


def _settings(options: AdapterOptions, by_count: bool) -> tuple[PeftConfig, ModuleType]:
    """Return the settings that peft's layers have in common, and the package with their classes.

    Args:
        by_count: whether each layer is given its number of blocks, for OFT_2.
    """
    from peft import LoHaConfig, LoKrConfig, LoraConfig, OFTConfig
    from peft.tuners import loha, lokr, lora, oft

    if options.kind == "OFT_2":
        count, size = (1, 0) if by_count else (0, options.rank)
        return OFTConfig(r=count, oft_block_size=size, module_dropout=options.dropout), oft
    if options.kind == "LORA":
        settings = LoraConfig(
            lora_dropout=options.dropout,
            use_dora=options.decompose,
            use_rslora=options.rank_stabilized,
        )
        return settings, lora
    if options.kind == "LOHA":
        return LoHaConfig(module_dropout=options.dropout), loha
    return LoKrConfig(module_dropout=options.dropout), lokr


def _settle(path: str, layer: Any, options: AdapterOptions) -> None:
    """Give a layer its seeded initial values and its number type.

    The values are drawn on the CPU under a generator state derived from (seed, layer), which is restored
    afterwards.
    """
    tensors = []
    for _, item in own_items(layer):
        tensors += list(item.parameters()) if isinstance(item, nn.Module) else [item]
    homes = [tensor.device for tensor in tensors]
    if any(home.type == "meta" for home in homes):
        # there are only shapes
        for tensor in tensors:
            tensor.data = tensor.data.to(options.dtype)
            tensor.requires_grad_(True)
        return
    for tensor in tensors:
        tensor.data = tensor.data.to("cpu", torch.float32)
    if options.kind != "OFT_2":
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(
                digest64("adapter-init", options.seed, path) & 0x7FFF_FFFF_FFFF_FFFF
            )
            if options.kind == "LORA":
                layer.reset_lora_parameters(NAME, True)
            else:
                layer.reset_adapter_parameters(NAME)
    for tensor, home in zip(tensors, homes, strict=True):
        tensor.data = tensor.data.to(home, options.dtype)
        tensor.requires_grad_(True)
    if options.decompose:
        magnitude = layer.lora_magnitude_vector[NAME]
        magnitude.get_weight_norm = partial(_positive, magnitude.get_weight_norm)
        _exact_magnitude(layer)


def _positive(norm: Callable[..., torch.Tensor], *given: Any, **named: Any) -> torch.Tensor:
    """The norms of a layer's weights, above 0: DoRA divides by them, and a row of zeros would become NaN."""
    found = norm(*given, **named)
    return found.clamp_min(torch.finfo(found.dtype).tiny)


@torch.no_grad()
def _exact_magnitude(layer: Any) -> None:
    """Compute DoRA's magnitude in full precision. peft uses the base's type, whose rounding would make a
    fresh adapter differ from its base.
    """
    weight, magnitude = layer.get_base_layer().weight, layer.lora_magnitude_vector[NAME]
    if not weight.is_floating_point():
        return
    wide = weight.float()
    norm = magnitude.get_weight_norm(wide, torch.zeros_like(wide), scaling=1.0)
    magnitude.weight.data = norm.to(magnitude.weight.dtype)
