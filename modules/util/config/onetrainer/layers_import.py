"""Converts OneTrainer's layer presets and filters into ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.util.config.foreign.Notes import Notes
from modules.util.enum.ModelType import ModelType

_BLOCKS = "blocks"
_FEW_BITS = ("FLOAT_8", "INT_8", "NFLOAT_4", "INT_W8A8", "FLOAT_W8A8", "GGUF")


def import_rounded_layers(
    full: Mapping[str, Any],
    ours: Mapping[str, Any],
    family: ModelType,
    defaults: Mapping[str, Any],
    notes: Notes,
) -> dict[str, Any]:
    """Our section of the layers in 8 or 4 bits. There it acts on denoisers alone, as here.

    Its preset ``blocks`` is ours, whatever its filter names the blocks.

    Args:
        ours: our section of the denoiser.
        defaults: of the section there.
    """
    given = full["quantization"]
    if not isinstance(given, Mapping):
        notes.add("quantization", given, "not an object", faulty=True)
        return {}
    parts = [full[part] for part in family.parts if isinstance(full[part], Mapping)]
    if any(in_few_bits(part) for part in parts) and given.get("svd_dtype") not in (None, "NONE"):
        notes.add("quantization.svd_dtype", given["svd_dtype"], "not supported; changes memory and rounding")
        notes.differences(given, defaults, set(given) - {"svd_rank"}, "quantization")
    if not in_few_bits(ours) or given.get("layer_filter_preset") == _BLOCKS:
        return {}
    return {"quantization": import_layers({**defaults, **given}, family, notes, "quantization.")}


def in_few_bits(part: Mapping[str, Any]) -> bool:
    """Return whether the weights of a section are kept in 8 or 4 bits."""
    return str(part.get("weight_dtype")).startswith(_FEW_BITS)


def import_layers(
    full: Mapping[str, Any], family: ModelType, notes: Notes, prefix: str = ""
) -> dict[str, Any]:
    """Our settings of layers, whose names begin with ``prefix``. As in OneTrainer, a filter takes precedence over the
    preset.
    """
    preset, text = full["layer_filter_preset"], full["layer_filter"]
    if not isinstance(preset, str) or not isinstance(text, str):
        return {"layer_filter_preset": preset, "layer_filter": text}
    text = ",".join(part.strip() for part in text.split(",") if part.strip())
    regex = full["layer_filter_regex"]
    if not text:
        other = family.spec.onetrainer_presets.get(preset)
        if other is None:
            return {"layer_filter_preset": _known(preset, family, prefix, notes)}
        text, regex = other, other.startswith("^")
    ours = family.spec.layer_presets.get(preset)
    if ours is not None and not regex and set(text.split(",")) == set(ours):
        return {"layer_filter_preset": preset}
    return {"layer_filter_preset": "custom", "layer_filter": text, "layer_filter_regex": regex}


def _known(preset: str, family: ModelType, prefix: str, notes: Notes) -> str:
    if preset in family.spec.layer_presets:
        return preset
    what = "kept in 8 or 4 bits" if prefix else "trained"
    place = f"{prefix}layer_filter_preset"
    notes.add(place, preset, f"unknown for {family.label}; all layers are {what}", ours="full")
    return "full"
