"""Import of samples: what they are painted into, and how their prompts are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.util.config.foreign.Notes import Notes
from modules.util.config.SampleConfig import READING, reading_of
from modules.util.enum.ModelType import ModelType

Data = dict[str, Any]
PAINTED = ("base_image_path", "mask_image_path")
SWITCH = "sample_inpainting"
MASK = "transformer_attention_mask"


def import_painting(full: Mapping[str, Any], family: ModelType, where: str, notes: Notes) -> Data:
    """The image that a sample is painted into, and its mask."""
    given = {name: full[name] for name in PAINTED if full[name] not in ("", None)}
    if full[SWITCH] is not True:
        for name, value in given.items():
            notes.add(f"{where}.{name}", value, f"left out; without {SWITCH} it is not read there")
        return dict.fromkeys(PAINTED, "")
    if family.spec.inpainting and len(given) != 1:
        notes.moved(f"{where}.{SWITCH}", True, f"{where}.base_image_path", "the image to paint into")
        return given
    why = (
        "its image or its mask is missing" if family.spec.inpainting else f"{family.label} makes whole images"
    )
    for name, value in {SWITCH: True, **given}.items():
        notes.add(f"{where}.{name}", value, f"left out; {why}")
    return dict.fromkeys(PAINTED, "")


def import_reading(full: Mapping[str, Any], family: ModelType, where: str, notes: Notes) -> Data:
    """Import how the prompts of a sample are read. There, values that nobody set are replaced by those of the
    run.
    """
    made: Data = dict.fromkeys(READING)
    for name in READING:
        value = full.get(name)
        if value in (None, False, 0):
            continue
        if name in reading_of(family.spec):
            made[name] = "MASKED" if name == MASK and value is True else value
        else:
            notes.add(f"{where}.{name}", value, f"left out; {family.label} has nothing to set there")
    return made
