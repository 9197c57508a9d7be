"""Samples of an adapter made with another denoiser than the one it is trained on: usually its distilled version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from modules.model.dtypes import PartDtypes
from modules.model.Model import Model
from modules.model.patches import wrap_edges
from modules.modelSetup import training
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.spec.FamilySpec import FamilySpec
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError, blamed_on, list_offenders
from modules.util.files.model_index import index_file
from modules.weights.loading import find_source

FIELD = "sample_model_name"
_SHOWN = 5


class SampleDenoiser:
    """A frozen denoiser with the same layers as the one that is trained, and the noise schedule that belongs to it.

    It stays in main memory. While a sample is denoised it is on the device, and the adapters that are trained sit on
    its layers instead of their own.

    Args:
        loaded: the model it was loaded with, of which it is the only part with weights.
    """

    def __init__(self, loaded: Model) -> None:
        self.loaded = loaded

    @classmethod
    def load(cls, setup: BaseModelSetup, model: Model, config: TrainConfig) -> SampleDenoiser:
        """The one a config names, its weights kept as those of the denoiser that is trained.

        Args:
            model: without adapters yet.

        Raises:
            UserError: not there, damaged, of another family or of another size.
        """
        opened = partial(_opened, setup, config, config.base_model_name, config.sample_model_name)
        with blamed_on(FIELD), torch.random.fork_rng(devices=[]):
            # a run draws the same numbers with and without it
            loaded = opened(replace(training.part_dtypes(config, setup.spec), variant=""))
            training.check_weights(loaded)
            _check_alike(loaded, model)
            training.make_compact(loaded, config, lambda _: opened(PartDtypes(lazy=True)))
            if config.force_circular_padding:
                wrap_edges(loaded.denoiser)
        return cls(loaded)

    @classmethod
    def outlined(
        cls, setup: BaseModelSetup, model: Model, config: TrainConfig, places: tuple[str, str], weights: bool
    ) -> SampleDenoiser:
        """The same without reading weights.

        Args:
            places: the base model and this one: folders or files.
            weights: refuse a folder that has configs only, as loading does.
        """
        with blamed_on(FIELD):
            loaded = _opened(setup, config, *places, PartDtypes(lazy=True, configs_only=not weights))
            _check_alike(loaded, model)
        return cls(loaded)

    @property
    def module(self) -> nn.Module:
        return self.loaded.denoiser

    @contextmanager
    def shown(self, model: Model) -> Iterator[None]:
        """The block in which a model's denoiser, its noise schedule and where they come from are these; nothing is
        moved or adapted yet.
        """
        own = {name: getattr(model, name) for name in ("parts", *_PLACES)}
        names = (model.spec.denoiser, *(part.name for part in model.spec.of_kind("scheduler")))
        try:
            model.parts = {**model.parts, **{name: self.loaded.parts[name] for name in names}}
            for name in _PLACES:
                setattr(model, name, getattr(self.loaded, name))
            yield
        finally:
            for name, value in own.items():
                setattr(model, name, value)

    @contextmanager
    def wearing(self, model: Model) -> Iterator[None]:
        """The block in which the model's adapters sit on this denoiser. The denoiser is moved before, not within: it
        would take them along.
        """
        put_on: list[tuple[nn.Module, str, nn.Module, Any, nn.Module]] = []
        layers: Mapping[str, Any] = {} if model.adapter is None else model.adapter.layers
        try:
            for place, layer in layers.items():
                part, _, path = place.partition(".")
                if part != model.spec.denoiser:
                    continue
                above, _, name = path.rpartition(".")
                parent = self.module.get_submodule(above)
                put_on.append((parent, name, parent.get_submodule(name), layer, layer.base_layer))
                layer.base_layer = parent.get_submodule(name)
                setattr(parent, name, layer)
            yield
        finally:
            for parent, name, bare, layer, base in put_on:
                setattr(parent, name, bare)
                layer.base_layer = base


_PLACES = ("schedule", "source", "denoiser_source", "hub_name", "shift")


def find_sample_model(name: str, spec: FamilySpec) -> None:
    """Find the model that samples are made with, or download what is needed of it.

    Raises:
        UserError: it is not there.
    """
    with blamed_on(FIELD):
        _whole(name, spec)


def _whole(name: str, spec: FamilySpec) -> bool:
    """Return whether a name stands for a folder that says which noise schedule its denoiser has."""
    parts = [spec.denoiser, *(part.name for part in spec.of_kind("scheduler"))]
    place = find_source(name, spec, parts, alone=True)
    return place.is_dir() and index_file(place) is not None


def _opened(setup: BaseModelSetup, config: TrainConfig, base: str, name: str, dtypes: PartDtypes) -> Model:
    """Its denoiser alone; that of a file has the noise schedule of the base model."""
    denoiser, options = setup.spec.denoiser, training.load_options(config)
    if _whole(name, setup.spec):
        return setup.load(name, dtypes, [denoiser], options)
    return setup.load(base, dtypes, [denoiser], options, {denoiser: name})


def _check_alike(loaded: Model, model: Model) -> None:
    """``UserError`` unless both denoisers have the same layers."""
    wanted, found = _sizes(model.denoiser), _sizes(loaded.denoiser)
    unlike = [
        f"{name}: {found.get(name, 'missing')} instead of {wanted.get(name, 'nothing')}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]
    if unlike:
        raise UserError(
            f"the {model.spec.denoiser} of {loaded.denoiser_source or loaded.source} has other layers than that "
            f"of {model.source_name}, so the trained adapter does not fit it:\n{list_offenders(unlike, _SHOWN)}",
            FIELD,
            "choose the distilled version of the base model itself",
        )


def _sizes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shapes of all weights, whatever they are kept as."""
    made: dict[str, tuple[int, ...]] = {}
    for path, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            made[path] = (layer.out_features, layer.in_features)
        else:
            made |= {f"{path}.{n}": tuple(p.shape) for n, p in layer.named_parameters(recurse=False)}
    return made
