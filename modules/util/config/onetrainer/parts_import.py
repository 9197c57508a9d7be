"""Import of model parts: weights, number formats, and what is not supported for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.util.config.BaseConfig import VERSION_KEY
from modules.util.config.faults import unwrap
from modules.util.config.foreign.Notes import Notes
from modules.util.config.onetrainer.idle import fits_prompts, length_of_prompts
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import DataType, StopUnit
from modules.util.enum.ModelType import ModelType

Data = dict[str, Any]

SAME_NUMBERS = {"TFLOAT_32": "FLOAT_32"}
_NEAREST = {
    "INT_W8A8": ("INT_8", "activations are not rounded to 8 bits"),
    "FLOAT_W8A8": ("FLOAT_8", "activations are not rounded to 8 bits"),
    "GGUF": ("NFLOAT_4", "from plain weights, not a .gguf file"),
    "GGUF_A8_FLOAT": ("NFLOAT_4", "from plain weights, not a .gguf file"),
    "GGUF_A8_INT": ("NFLOAT_4", "from plain weights, not a .gguf file"),
}
"""Unsupported number formats of weights: the nearest format that is not wider, and what else differs."""
_FEW_BITS = ("FLOAT_8", "INT_8", "NFLOAT_4")
_NOT_OFFLOADED = ("INT_8", "NFLOAT_4")
END = ("stop_training_after", "stop_training_after_unit")
_OF_NO_VAE = (
    *("train", "learning_rate", "gradient_checkpointing", "dropout_probability"),
    *(*END, "offload_fraction", "activation_offloading"),
)


def import_part(
    part: str, family: ModelType, full: Mapping[str, Any], defaults: Mapping[str, Any], notes: Notes
) -> Data:
    """Our section of a part of the model.

    Args:
        part: its name, the same in both programs.
        full: the config with its defaults.
    """
    given = full[part]
    if not isinstance(given, Mapping):
        notes.add(part, given, "not an object", faulty=True)
        return {}
    owner, _ = unwrap(TrainConfig.model_fields[part].annotation)
    ours = owner.model_fields
    made = {name: value for name, value in given.items() if name in ours and name not in END}
    made["weight_dtype"] = _weights(part, given, full["base_model_name"], notes)
    idle = {"guidance_scale", "include", VERSION_KEY}
    if given.get("include") is False and part not in family.spec.optional_encoders:
        made.pop("include", None)
        notes.add(f"{part}.include", False, "this part is always used")
    # it concerns text encoders, whose sections have it
    idle.add("train_embedding")
    idle.add("attention_mask")
    made.pop("attention_mask", None)
    if part == "transformer" and given.get("attention_mask") is True:
        made |= _mask(part, family, notes)
    length = length_of_prompts(part, full, family)
    if fits_prompts(length, family):
        made["sequence_length"] = length
    if part == "vae":
        idle.update(_OF_NO_VAE)
    else:
        made |= end_of_training(part, given, full, notes)
    if not given.get("train"):
        idle.add("learning_rate")
    if not given.get("train") or not given.get("gradient_checkpointing"):
        # what it moves is what checkpointing stores
        idle.add("activation_offloading")
        made.pop("activation_offloading", None)
    notes.differences(given, defaults, {*ours, *idle}, part)
    return made


def end_of_training(part: str, given: Mapping[str, Any], full: Mapping[str, Any], notes: Notes) -> Data:
    """Return when a part or an embedding is frozen before the end of the run."""
    after, unit = given.get("stop_training_after"), given.get("stop_training_after_unit")
    place, epochs, together = (
        f"{part}.stop_training_after",
        full["epochs"],
        full["gradient_accumulation_steps"],
    )
    if not given.get("train") or unit == "NEVER" or after is None:
        return {}
    counted = isinstance(after, int) and not isinstance(after, bool)
    if not counted or unit not in StopUnit.__members__:
        notes.add(place, f"{after} {unit}", "trained to the end: only EPOCH and STEP are supported")
        return {}
    if unit == "EPOCH" and isinstance(epochs, (int, float)) and after >= epochs:
        return {}
    if after < 1:
        notes.moved(place, f"{after} {unit}", f"{part}.train = false", "never trained")
        return {"train": False}
    if unit == "STEP" and isinstance(together, int) and together > 1:
        after = max(1, after // together)
        why = "the file counts batches, not optimizer steps"
        notes.moved(place, f"{given['stop_training_after']} STEP", f"{after}", why)
    return {"stop_training_after": after, "stop_training_after_unit": unit}


def _mask(part: str, family: ModelType, notes: Notes) -> Data:
    """The padding mask, which means the same if the model uses one."""
    if family.spec.padding == "none":
        notes.moved(f"{part}.attention_mask", True, "nothing to do", "padding is never given to this model")
        return {}
    return {"attention_mask": "MASKED"}


def _weights(part: str, given: Mapping[str, Any], base: Any, notes: Notes) -> Any:
    """The number format of weights, never a wider one. For compressed formats, the original format is kept."""
    value = given["weight_dtype"]
    place = f"{part}.weight_dtype"
    name = value.removesuffix("_COMPRESSED") if isinstance(value, str) else ""
    name = SAME_NUMBERS.get(name, name)
    ours, difference = _NEAREST.get(name, (name, ""))
    if part == "transformer" and str(given.get("model_name") or base).lower().endswith(".gguf"):
        # the blocks of the file stay as they are; this applies to everything else
        if value in DataType.__members__:
            return value
        notes.moved(place, value, "BFLOAT_16", "the weights stay as they are in the GGUF file")
        return "BFLOAT_16"
    fraction = given.get("offload_fraction")
    if part == "vae" and ours in _FEW_BITS:
        ours, difference = "BFLOAT_16", "the VAE has 16 or 32 bits"
    elif ours in _NOT_OFFLOADED and isinstance(fraction, (int, float)) and fraction > 0:
        ours, difference = "FLOAT_8", "INT_8 and NFLOAT_4 weights cannot be offloaded"
    if not ours:
        return value
    if difference:
        notes.add(place, value, f"{ours} instead; {difference}", ours=ours)
    elif ours != value:
        notes.moved(place, value, ours, "the same numbers")
    return ours
