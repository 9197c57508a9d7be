"""Converts OneTrainer's layer presets and filters into ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.util.config.foreign.Notes import Notes
from modules.util.enum.ModelType import ModelType


def import_layers(full: Mapping[str, Any], family: ModelType, notes: Notes) -> dict[str, Any]:
    """Our layer settings. As in OneTrainer, a filter takes precedence over the preset."""
    preset, text = full["layer_filter_preset"], full["layer_filter"]
    if not isinstance(preset, str) or not isinstance(text, str):
        return {"layer_filter_preset": preset, "layer_filter": text}
    text = ",".join(part.strip() for part in text.split(",") if part.strip())
    regex = full["layer_filter_regex"]
    if not text:
        other = family.spec.onetrainer_presets.get(preset)
        if other is None:
            return {"layer_filter_preset": _known(preset, family, notes)}
        text, regex = other, other.startswith("^")
    ours = family.spec.layer_presets.get(preset)
    if ours is not None and not regex and set(text.split(",")) == set(ours):
        return {"layer_filter_preset": preset}
    return {"layer_filter_preset": "custom", "layer_filter": text, "layer_filter_regex": regex}


def _known(preset: str, family: ModelType, notes: Notes) -> str:
    if preset in family.spec.layer_presets:
        return preset
    notes.add(
        "layer_filter_preset", preset, f"unknown for {family.label}; all layers are trained", ours="full"
    )
    return "full"
