"""Migrations of older config files: pure functions on dicts, one per version step.

Version 0 is a file without ``__version``: written by hand, often with the short names people know from other
trainers. A migration never overwrites a value given under its current name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Data = dict[str, Any]

_RENAMED_IN_1 = {
    "lora_layers": "layer_filter",
    "lora_layer_preset": "layer_filter_preset",
    "lora_layers_regex": "layer_filter_regex",
}


def train_0_to_1(data: Data) -> Data:
    """Replace one number format and one checkpointing switch for the whole model by one for each part,
    ``lora_layers`` by ``layer_filter``, and SAFETENSORS as the format of an adapter by KOHYA_LORA.
    """
    made = dict(data)
    for old, new in _RENAMED_IN_1.items():
        if old in made:
            made.setdefault(new, made.pop(old))
    if "weight_dtype" in made:
        dtype = made.pop("weight_dtype")
        for part in ("unet", "text_encoder", "vae"):
            _default_in_part(made, part, "weight_dtype", dtype)
    if "gradient_checkpointing" in made:
        checkpointing = made.pop("gradient_checkpointing")
        for part in ("unet", "text_encoder"):
            _default_in_part(made, part, "gradient_checkpointing", checkpointing)
    if made.get("training_method") == "LORA" and made.get("output_model_format") == "SAFETENSORS":
        made["output_model_format"] = "KOHYA_LORA"
    return made


def _default_in_part(data: Data, part: str, name: str, value: Any) -> None:
    given = data.get(part, {})
    if isinstance(given, Mapping):
        data[part] = {name: value, **given}


TRAIN_MIGRATIONS = {0: train_0_to_1}
