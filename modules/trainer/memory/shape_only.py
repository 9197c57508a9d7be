"""A model without weights, built from the configs in its folder, to count bytes without allocating them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from modules.adapter.TrainingAdapter import TrainingAdapter
from modules.model.compact import FrozenLinear, roundable_layers
from modules.model.dtypes import FLOAT_8, INT_8, QUANTIZED, PartDtypes, torch_dtype
from modules.model.gguf_layers import GgufLinear, keep_packed, rows_at_once, unpacked
from modules.model.lazy_modules import ShapesOnly, lazy_base_tensors
from modules.model.Model import Model
from modules.modelSetup import training
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.SampleDenoiser import FIELD as SAMPLES_FIELD
from modules.modelSetup.SampleDenoiser import SampleDenoiser
from modules.spec.FamilySpec import FamilySpec
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UnsupportedError
from modules.util.files.user_path import user_path
from modules.weights.hub_cache import downloaded
from modules.weights.hub_file import local_file
from modules.weights.loading import FIELD, is_hub_name

_BLOCK, _SECOND_BLOCK = 64, 256
"""Weights that share a 4-bit scale, and scales that share a second scale."""


class ModelNotLocal(UnsupportedError):
    """The model is on the hub but not on this machine, so its memory is unknown. This is not an error of the
    config.
    """


class ShapeOnlyLinear(FrozenLinear):
    """Simulates the memory of a frozen layer whose weight is rounded, or copied from main memory, in every pass."""

    compute = torch.float32

    def wanted_dtype(self, input: torch.Tensor) -> torch.dtype:
        return input.dtype if self.compute == torch.float32 else self.compute

    def to_device(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        return self.weight.to(device=device, dtype=dtype, copy=self.stays)


class PackedLinear(ShapeOnlyLinear):
    """Simulates the memory of a layer in 4- or 8-bit integers, whose weight is unpacked in every pass and not
    kept.
    """

    def __init__(self, layer: nn.Linear, kind: str) -> None:
        super().__init__(layer)
        self.kind = kind
        shape, count = tuple(layer.weight.shape), layer.weight.numel()
        if kind == INT_8:
            packed, scales = torch.empty(shape, dtype=torch.int8, device="meta"), 4 * shape[0]
        else:
            packed = torch.empty((count + 1) // 2, 1, dtype=torch.uint8, device="meta")
            blocks = -(-count // _BLOCK)
            # an 8-bit scale per block, a 32-bit scale per group of these, their mean and the two tables
            scales = blocks + 4 * (-(-blocks // _SECOND_BLOCK) + 1 + 16 + 256)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.register_buffer("scales", torch.empty(scales, dtype=torch.uint8, device="meta"))

    @property
    def kept_as(self) -> str:
        return self.kind

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        wanted = self.wanted_dtype(input)
        bias = None if self.bias is None else self.bias.to(wanted)
        shape = (self.out_features, self.in_features)
        return _Unpacked.apply(input.to(wanted), self.weight, bias, shape, self.kind)  # type: ignore[no-any-return,no-untyped-call]


class ShapeOnlyGguf(ShapeOnlyLinear, GgufLinear):
    """Simulates the memory of a layer stored in GGUF blocks: its weight in every pass, and its packed numbers."""

    def to_device(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        packed_OB = self.weight.to(device=device, copy=self.stays)
        unpacked(packed_OB[: rows_at_once(self.in_features)], self.kind, dtype)
        return packed_OB.new_empty((self.out_features, self.in_features), dtype=dtype)


class _Unpacked(torch.autograd.Function):
    """Tensors that packed layers hold for the backward pass: the 8-bit one its input, the 4-bit one nothing
    new.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, shape: Any, kind: str
    ) -> torch.Tensor:
        ctx.shape = shape
        ctx.save_for_backward(packed, *([x] if kind == INT_8 else []))
        weight_OI = x.new_empty(shape)
        return nn.functional.linear(x, weight_OI, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weight_OI = grads[0].new_empty(ctx.shape)
        return grads[0] @ weight_OI, None, None, None, None


class ShapeOnlyModel(Model):
    """A ``Model`` whose tensors have only shapes and types, on the meta device, which has no autocast of its own."""

    def autocast(self) -> AbstractContextManager[object]:
        return nullcontext()


def shape_only_model(
    setup: BaseModelSetup,
    config: TrainConfig,
    parts: Mapping[str, Any] | None = None,
    weights: bool = False,
    before: Mapping[str, str] | None = None,
) -> ShapeOnlyModel:
    """Build the model of a config on the meta device, with its adapter or trained weights, without reading
    weights.

    Args:
        parts: its parts on the meta device, in place of those it would be loaded with.
        weights: refuse a folder that has only configs, or unfit files of weights, as loading does.
        before: the files of weights that a resumed run read when it began, see ``part_dtypes``.

    Raises:
        ModelNotLocal: the model is not on this machine. Other UserErrors: anything that loading would refuse,
            and settings that do not fit the model.
    """
    dtypes = training.part_dtypes(config, setup.spec, before)
    options = training.load_options(config)
    source = denoiser_source = str(user_path(config.base_model_name, "base_model_name"))
    loaded = training.parts_of_a_run(config, setup.spec)
    if parts is None:
        base, named = _places(setup, config, weights)
        outlined = setup.load(base, _lazily(dtypes, weights), loaded, options, named)
        source, denoiser_source, parts = outlined.source, outlined.denoiser_source, outlined.parts
        schedule = outlined.schedule
    else:
        parts = {name: part for name, part in parts.items() if name in loaded}
        schedule = setup._schedule(parts[setup.spec.of_kind("scheduler")[0].name], options)
    for name in setup.spec.module_parts:
        if name in parts:
            _typed(parts[name], dtypes.of(name))
    model = ShapeOnlyModel(
        spec=setup.spec,
        source=source,
        denoiser_source=denoiser_source,
        parts=dict(parts),
        schedule=schedule,
        compute_dtype=dtypes.compute,
        device=torch.device("meta"),
    )
    setup._set_latents(model)
    name = config.training_adapter.model_name
    if name and (file := local_file(name)) is not None:
        model.training_adapter = TrainingAdapter.read(file, model, config.training_adapter.strength)
    training.read_as_told(model, config)
    if config.sample_model_name.strip():
        model.sample_denoiser = _of_samples(setup, model, config, weights)
    _make_compact(model, config)
    if setup.spec.embeds_guidance:
        model.guidance = float(getattr(config, setup.spec.denoiser).guidance_scale)
    # there is nothing to compute a digest of
    model._fingerprints = dict.fromkeys(setup.spec.module_parts, "")
    with ShapesOnly():
        training.attach_or_unfreeze(model, config)
    return model


def _lazily(dtypes: PartDtypes, weights: bool) -> PartDtypes:
    """The same files, of which no weights are read; without ``weights``, no files of weights need be there."""
    if not weights:
        return PartDtypes(lazy=True, configs_only=True)
    return PartDtypes(lazy=True, half=dtypes.half, variant=dtypes.variant, before=dtypes.before)


def _of_samples(setup: BaseModelSetup, model: Model, config: TrainConfig, weights: bool) -> SampleDenoiser:
    """The denoiser that samples are made with."""
    denoiser = setup.spec.denoiser
    name = _here(config.sample_model_name, SAMPLES_FIELD, setup.spec, [denoiser], alone=True, weights=weights)
    made = SampleDenoiser.outlined(setup, model, config, (model.source, name), weights)
    _typed(made.module, training.part_dtypes(config, setup.spec).of(denoiser))
    _make_compact(made.loaded, config)
    return made


def _places(setup: BaseModelSetup, config: TrainConfig, weights: bool) -> tuple[str, dict[str, str]]:
    """Return the places to load the outline from: the config's names, with hub names replaced by folders of the
    local cache.
    """
    spec = setup.spec
    loaded = training.parts_of_a_run(config, spec)
    names = {part: getattr(config, part).model_name for part in spec.module_parts if part in loaded}
    own = [part for part, name in names.items() if name.strip()]
    rest = [part for part in loaded if part not in own]
    for part in own:
        names[part] = _here(names[part], f"{part}.model_name", spec, [part], alone=True, weights=weights)
    more = {"configs": own, "weights": weights, "variant": config.weight_variant}
    return _here(config.base_model_name, FIELD, spec, rest, **more), names


def _here(name: str, field: str, spec: FamilySpec, parts: Sequence[str], **also: Any) -> str:
    if not is_hub_name(name):
        return name
    folder = downloaded(name, spec, parts, **also)
    if folder is None:
        raise ModelNotLocal(
            f"{name} is not on this machine, so the memory it takes cannot be estimated",
            field=field,
            hint="download the model to estimate its memory; a run downloads it too",
        )
    return str(folder)


def _typed(module: nn.Module, dtype: torch.dtype) -> None:
    """Apply types as loading would: some weights stay in full precision while the others are in half precision."""
    kept = tuple(getattr(module, "_keep_in_fp32_modules", None) or ()) if dtype == torch.float16 else ()
    for name, parameter in module.named_parameters():
        wide = any(piece in kept for piece in name.split("."))
        parameter.data = parameter.data.to(torch.float32 if wide else dtype)
    for buffer in module.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.data.to(dtype)


def _make_compact(model: Model, config: TrainConfig) -> None:
    compute = torch_dtype(config.train_dtype, "train_dtype")
    for name, module in model.modules().items():
        part = getattr(config, name)
        kind = part.weight_dtype.value
        keep_packed(module, lazy_base_tensors(module))
        training.check_rounding(module, name, kind)
        names = training.rounded_names(module, name, config) if kind in QUANTIZED else ()
        for parent, child, layer in list(roundable_layers(module, names)):
            if kind == FLOAT_8:
                rounded = FrozenLinear(layer)
                rounded.to_float8()
                setattr(parent, child, rounded)
            else:
                setattr(parent, child, PackedLinear(layer, kind))
        training.keep_in_main_memory(model, config, name)
        for inside in module.modules():
            if isinstance(inside, FrozenLinear):
                kinds = (
                    (ShapeOnlyGguf, GgufLinear),
                    (PackedLinear, PackedLinear),
                    (ShapeOnlyLinear, FrozenLinear),
                )
                inside.__class__ = next(own for own, layers in kinds if isinstance(inside, layers))
                inside.compute = compute  # type: ignore[assignment]
