"""Rules for weights kept in main memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from modules.spec.registry import TEXT_ENCODERS
from modules.util.config.rules.rules import STEP_ALONE, ConfigWarning, Finding, rule
from modules.util.config.section.LoraSection import is_regular_expression
from modules.util.config.section.ModelPartConfig import BLOCKS, CUSTOM
from modules.util.enum.choices import EMAMode, TrainingMethod, WeightDtype
from modules.util.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from modules.util.config.TrainConfig import TrainConfig

COMPILES = "torch_compile"


@rule("model_type", "training_method", "unet", "transformer", *TEXT_ENCODERS)
def _layers_kept_elsewhere(c: TrainConfig) -> Iterator[Finding]:
    yield from _kept_elsewhere(c, c.model_type.denoiser)
    trained = c.trained_parts() if c.training_method is TrainingMethod.FINE_TUNE else ()
    for name in c.model_type.text_encoders:
        yield from _kept_elsewhere(c, name)
        if name in trained and getattr(c, name).offload_fraction > 0:
            yield UnsupportedError(
                "the weights of a fine-tuned text encoder cannot stay in main memory",
                f"{name}.offload_fraction",
                f"set it to 0, or {name}.train to false",
            )


def _kept_elsewhere(c: TrainConfig, name: str) -> Iterator[Finding]:
    part = getattr(c, name)
    if part.offload_fraction > 0 and part.train and not part.gradient_checkpointing:
        yield ConfigError(
            "saves no memory without gradient checkpointing, which copies the weights again in the backward pass",
            f"{name}.offload_fraction",
            f"switch on {name}.gradient_checkpointing",
        )
    if part.offload_fraction > 0 and part.weight_dtype in (WeightDtype.INT_8, WeightDtype.NFLOAT_4):
        yield UnsupportedError(
            f"weights in {part.weight_dtype} cannot stay in main memory",
            f"{name}.offload_fraction",
            "use FLOAT_8 or BFLOAT_16 weights, or set this to 0",
        )


@rule("model_type", "unet", "transformer", *TEXT_ENCODERS, "acceleration")
def _activations_kept_elsewhere(c: TrainConfig) -> Iterator[Finding]:
    for name in (c.model_type.denoiser, *c.model_type.text_encoders):
        part, place = getattr(c, name), f"{name}.activation_offloading"
        if not part.activation_offloading:
            continue
        if part.train and not part.gradient_checkpointing:
            yield ConfigError(
                "needs gradient checkpointing, which stores the activations that are kept in main memory",
                place,
                f"switch on {name}.gradient_checkpointing",
            )
        compiled = name == c.model_type.denoiser and part.train
        whole = [one for one in c.acceleration.shared if one.name == COMPILES and one.params.get("scope") == "full"]
        if compiled and whole:
            yield UnsupportedError(
                f"{COMPILES} of the whole denoiser cannot be used with activations in main memory",
                "acceleration.shared",
                f"set its scope to regional, or switch off {place}",
            )


@rule("training_method", "model_type", "unet", "transformer", "ema", "optimizer", "acceleration")
def _trained_in_main_memory(c: TrainConfig) -> Iterator[Finding]:
    if not c.trains_in_main_memory():
        return
    place = f"{c.model_type.denoiser}.offload_fraction"
    if c.optimizer.optimizer not in STEP_ALONE:
        yield UnsupportedError(
            f"{c.optimizer.optimizer} cannot train weights in main memory",
            "optimizer.optimizer",
            f"use {', '.join(STEP_ALONE)}, or set {place} to 0",
        )
    if c.ema is EMAMode.GPU:
        yield UnsupportedError(
            "cannot be kept on the GPU for weights that are trained in main memory",
            "ema",
            f"set it to CPU, or {place} to 0",
        )
    if any(one.name == COMPILES for one in c.acceleration.shared):
        yield UnsupportedError(
            f"{COMPILES} cannot be used with weights that are trained in main memory",
            "acceleration.shared",
            f"leave it out, or set {place} to 0",
        )


@rule("quantization")
def _filter_of_few_bits(c: TrainConfig) -> Iterator[Finding]:
    own, place = c.quantization, "quantization.layer_filter"
    if own.layer_filter_preset == CUSTOM and not own.patterns():
        hint = "name parts of layers such as attn, or choose the preset blocks"
        yield ConfigError(f"is empty while {place}_preset is {CUSTOM}", place, hint)
    for pattern in own.patterns() if own.layer_filter_regex else ():
        if not is_regular_expression(pattern):
            yield ConfigError(f"{pattern!r} is not a regular expression", place)
    if own.layer_filter_preset != CUSTOM and own.layer_filter.strip():
        chosen = f"the preset {own.layer_filter_preset} chooses the layers"
        yield ConfigWarning(f"has no effect: {chosen}; set {place}_preset to {CUSTOM}", place)


@rule("quantization", "model_type", "unet", "transformer")
def _layers_in_few_bits(c: TrainConfig) -> Iterator[Finding]:
    own, denoiser = c.quantization, c.model_type.denoiser
    known = (*c.model_type.spec.layer_presets, CUSTOM)
    if own.layer_filter_preset not in known:
        yield ConfigError(
            f"{own.layer_filter_preset!r} is not a layer preset of {c.model_type.label}",
            "quantization.layer_filter_preset",
            f"known: {', '.join(known)}",
        )
    dtype = getattr(c, denoiser).weight_dtype
    if own.layer_filter_preset != BLOCKS and not dtype.quantized:
        yield ConfigWarning(
            f"has no effect: {denoiser}.weight_dtype is {dtype}, so no layer is kept in 8 or 4 bits",
            "quantization.layer_filter_preset",
        )
