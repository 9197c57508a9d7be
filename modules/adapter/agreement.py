"""Checks that a config matches the adapter file that training starts from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from math import isclose

from modules.adapter.AdapterFile import AdapterFile
from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.layers import by_pattern
from modules.adapter.PeftAdapter import targets
from modules.model.Model import Model
from modules.util.config.faults import raise_all
from modules.util.errors import ConfigError, UserError, list_offenders

AXIS = "lora_decompose_output_axis"
_SHOWN = 5


def check_agreement(
    options: AdapterOptions, source: AdapterFile, model: Model, given: Collection[str]
) -> None:
    """Raise ``UserError`` for settings that the file overrides, each with its field.

    General rank and alpha are not checked, because they have no value that means "not set".

    Args:
        given: fields of the config that differ from their defaults.
    """
    faults: list[UserError] = [
        ConfigError(
            f"the adapter {source.source} has nothing for {part}",
            field=f"{part}.train",
            hint=f"switch {part}.train off, or train a new adapter",
        )
        for part in options.parts
        if part not in source.parts()
    ]
    faults += _of_kind(options, source, given)
    if "layer_filter_preset" in given:
        faults += _of_layers(options, source, model)
    layers = {f"{part}.{path}": layer for (part, path), layer in source.layers.items()}
    has_rank = {name for name, layer in layers.items() if "lokr_w2" not in layer.tensors}
    ranks = {name: float(layer.rank) for name, layer in layers.items()}
    faults += _of_pattern("lora_rank_pattern", options.rank_pattern, options.regex, ranks, has_rank)
    root = 0.5 if options.rank_stabilized else 0.0
    alphas = {name: layer.alpha / ranks[name] ** root for name, layer in layers.items()}
    faults += _of_pattern("lora_alpha_pattern", options.alpha_pattern, options.regex, alphas, has_rank)
    raise_all(faults)


def _of_kind(options: AdapterOptions, source: AdapterFile, given: Collection[str]) -> Iterator[UserError]:
    if "peft_type" in given and options.kind != source.kind:
        yield ConfigError(
            f"the adapter {source.source} is a {source.kind}, not a {options.kind}",
            field="peft_type",
            hint=f"set it to {source.kind}",
        )
    if options.decompose and not source.decomposed:
        yield ConfigError(
            f"the adapter {source.source} has no magnitudes (DoRA)",
            field="lora_decompose",
            hint="switch it off, or train a new adapter",
        )
    asked = options.decompose or AXIS in given
    if asked and source.decomposed and options.decompose_outputs != source.decompose_outputs:
        has, lacks = ("outputs", "inputs") if source.decompose_outputs else ("inputs", "outputs")
        yield ConfigError(
            f"the adapter {source.source} has magnitudes (DoRA) of {has}, not of {lacks}",
            field=AXIS,
            hint=f"set it to {str(source.decompose_outputs).lower()}, or train a new adapter",
        )


def _of_layers(options: AdapterOptions, source: AdapterFile, model: Model) -> Iterator[UserError]:
    denoiser = model.spec.denoiser
    if denoiser not in options.parts or denoiser not in source.parts():
        return
    wanted = targets(
        model, denoiser, replace(options, kind=source.kind, decompose=False, rank_stabilized=False)
    )
    has = source.paths(denoiser)
    unlike = [f"{path}: not in the file" for path in wanted if path not in has]
    unlike += [f"{path}: not chosen" for path in has if path not in wanted]
    if unlike:
        yield ConfigError(
            f"the adapter {source.source} adapts other layers than the filter "
            f"selects:\n{list_offenders(unlike, _SHOWN)}",
            field="layer_filter_preset",
            hint="leave layer_filter_preset at its default: the file decides the layers",
        )


def _of_pattern(
    field: str, values: Mapping[str, float], regex: bool, has: Mapping[str, float], fixed: Collection[str]
) -> Iterator[UserError]:
    """Yield a fault if a pattern gives some layers another value than they have."""
    unlike = [
        f"{name}: {has[name]:g} instead of {value:g}"
        for name, value in by_pattern(list(has), values, regex, field).items()
        if name in fixed and not isclose(has[name], value, rel_tol=1e-2)
    ]
    if unlike:
        yield ConfigError(
            f"the adapter file has other values:\n{list_offenders(unlike, _SHOWN)}",
            field=field,
            hint="leave it empty, or train a new adapter",
        )
