"""The features of a OneTrainer config that are supported here, their nearest equivalents, and those that are
refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

from modules.util.config.faults import raise_all, show
from modules.util.config.foreign.base_family import family_of_base
from modules.util.config.foreign.Notes import Notes
from modules.util.config.onetrainer.layers_import import in_few_bits
from modules.util.config.onetrainer.optimizer_import import import_optimizer
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import PeftType, TrainingMethod
from modules.util.enum.ModelType import ModelType
from modules.util.errors import ConfigError, UnsupportedError, UserError

Data = dict[str, Any]

_FAMILIES = {
    "STABLE_DIFFUSION_20_DEPTH": ("STABLE_DIFFUSION_20_BASE", "it takes a depth image"),
    "WUERSTCHEN_2": ("STABLE_DIFFUSION_XL_10_BASE", "a cascade of two denoisers"),
    "STABLE_CASCADE_1": ("STABLE_DIFFUSION_XL_10_BASE", "a cascade of two denoisers"),
    "FLUX_FILL_DEV_1": ("FLUX_DEV_1", "it fills in a hole of an image"),
    "HUNYUAN_VIDEO": ("FLUX_DEV_1", "it makes videos"),
    "LTX_2": ("FLUX_DEV_1", "it makes videos"),
}
"""Unsupported families: the nearest supported one, and why."""
_METHODS = {"FINE_TUNE_VAE": ("FINE_TUNE", "the VAE is always frozen here")}


def offered(
    full: Mapping[str, Any], defaults: Mapping[str, Any], notes: Notes, lenient: bool
) -> tuple[ModelType, Data]:
    """The model family, and replacements for values of ``full``: method, adapter type, optimizer, learning
    rate.

    Args:
        lenient: use the nearest supported value and note it.

    Raises:
        UserError: the file asks for something unsupported; several faults are raised together, with the values of
            the wrong kind. On their own, those are only noted.
    """
    faults: list[UserError] = []
    made: Data = {}
    family = _choose("model_type", full, list(ModelType.__members__), _FAMILIES, lenient, notes, faults)
    base = _family_of_base(full)
    if base is not None and base.spec.onetrainer_type == family:
        family = base.value
    made["training_method"] = _choose(
        "training_method", full, list(TrainingMethod.__members__), _METHODS, lenient, notes, faults
    )
    if made["training_method"] == "EMBEDDING" and family in ModelType.__members__:
        made["training_method"] = _of_words(full, ModelType(family), lenient, notes, faults)
    if made["training_method"] == "LORA":
        made["peft_type"] = _choose("peft_type", full, list(PeftType.__members__), {}, lenient, notes, faults)
    try:
        made |= import_optimizer(full, defaults["optimizer"], notes, lenient)
    except UserError as fault:
        faults.append(fault)
    if family in ModelType.__members__:
        faults += _impossible(full, ModelType(family), made)
    title = "this OneTrainer config asks for {count} things that are not supported"
    wrong = list(_of_wrong_kind(full, defaults)) if faults else []
    if wrong:
        title = "this OneTrainer config has {count} values that cannot be imported"
    raise_all([*faults, *wrong], title.format(count=len(faults) + len(wrong)))
    return ModelType(family), made


def _of_wrong_kind(full: Mapping[str, Any], defaults: Mapping[str, Any], inside: str = "") -> Iterator[UserError]:
    """Faults: values that are not numbers, or not switches, where the defaults there are."""
    for name, default in defaults.items():
        value, field = full.get(name), f"{inside}{name}"
        if not inside and name not in TrainConfig.model_fields:
            continue
        if isinstance(default, Mapping) and isinstance(value, Mapping):
            yield from _of_wrong_kind(value, default, f"{field}.")
        elif isinstance(default, bool) and not isinstance(value, (bool, NoneType)):
            yield ConfigError(f"must be true or false, not {show(value)}", field)
        elif type(default) in (int, float) and value is not None and not _is_number(value):
            yield ConfigError(f"must be a number, not {show(value)}", field)


def _is_number(value: object) -> bool:
    """Return whether this is a number, perhaps written as text."""
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _choose(
    field: str,
    full: Mapping[str, Any],
    known: list[str],
    nearest: Mapping[str, tuple[str, str]],
    lenient: bool,
    notes: Notes,
    faults: list[UserError],
) -> str:
    value = full[field]
    if isinstance(value, str) and value in known:
        return value
    near, why = nearest.get(value, ("", "")) if isinstance(value, str) else ("", "")
    if not near:
        found = difflib.get_close_matches(value, known, n=1) if isinstance(value, str) else []
        near = found[0] if found else ""
    if lenient and near:
        notes.add(field, value, f"not supported; {near} instead" + (f" ({why})" if why else ""), ours=near)
        return near
    hint = f"nearest: {near}; --lenient uses it" if near else "docs/config.md lists what is supported"
    faults.append(
        UnsupportedError(f"{show(value)} is not supported" + (f": {why}" if why else ""), field, hint)
    )
    return ""


def _family_of_base(full: Mapping[str, Any]) -> ModelType | None:
    """The family of the base model; ``None`` if it cannot be determined."""
    try:
        return family_of_base(str(full.get("base_model_name")), (), "base_model_name")
    except UnsupportedError:
        return None


def _of_words(
    full: Mapping[str, Any], family: ModelType, lenient: bool, notes: Notes, faults: list[UserError]
) -> str:
    """The training method EMBEDDING, for families that support embeddings."""
    own = full.get("embedding")
    output = isinstance(own, Mapping) and own.get("is_output_embedding") is True
    if family.spec.embedding_keys or (output and family.spec.output_keys):
        return "EMBEDDING"
    methods = [name for name in TrainingMethod.__members__ if name != "EMBEDDING"]
    nearest = {"EMBEDDING": ("LORA", f"embeddings cannot be used with {family.label}")}
    return _choose("training_method", full, methods, nearest, lenient, notes, faults)


def _impossible(full: Mapping[str, Any], family: ModelType, made: Data) -> Iterator[UserError]:
    """Faults: values with no defined meaning for what is trained, and files that cannot be read."""
    if full.get("loss_weight_fn") == "SIGMA" and not family.spec.flow_matching:
        yield ConfigError(
            f"SIGMA is not defined for {family.label}, which is not a flow-matching model",
            "loss_weight_fn",
            "choose CONSTANT or MIN_SNR_GAMMA",
        )
    named = [("base_model_name", full.get("base_model_name"))]
    for part in family.parts:
        section = full.get(part)
        section = section if isinstance(section, Mapping) else {}
        named.append((f"{part}.model_name", section.get("model_name")))
        trained = made["training_method"] == "FINE_TUNE" and part != "vae" and section.get("train") is True
        if trained and in_few_bits(section):
            yield UnsupportedError(
                f"weights kept in {show(section['weight_dtype'])} cannot be trained themselves",
                f"{part}.weight_dtype",
                "nearest: BFLOAT_16, or train a LORA",
            )
    for field, name in named:
        denoiser = field in ("base_model_name", "transformer.model_name") and family.denoiser == "transformer"
        if isinstance(name, str) and name.lower().endswith(".gguf") and not denoiser:
            yield UnsupportedError(
                f"{show(name)} is a GGUF file, which is read for transformers only",
                field,
                "take the same model in FLOAT_8 or BFLOAT_16, as .safetensors",
            )
