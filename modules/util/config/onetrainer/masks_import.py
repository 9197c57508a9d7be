"""Import of masked training, whose settings are the same; one of them acts with fewer families in OneTrainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.util.config.foreign.Notes import Notes
from modules.util.enum.ModelType import ModelType

Data = dict[str, Any]


def import_masks(full: Mapping[str, Any], family: ModelType, notes: Notes) -> Data:
    """Settings of masked training that have the same name here but another value."""
    # there, it has no effect with other models
    made: Data = {} if family.spec.inpainting else {"custom_conditioning_image": False}
    if full["masked_training"] is not True:
        return made
    if not family.spec.inpainting and full["unmasked_probability"] != 0:
        made["unmasked_probability"] = 0.0
        notes.moved(
            "unmasked_probability",
            full["unmasked_probability"],
            "unmasked_probability = 0",
            "in OneTrainer, it affects only inpainting models",
        )
    if full["training_method"] != "LORA" and full["masked_prior_preservation_weight"] != 0:
        made["masked_prior_preservation_weight"] = 0.0
        notes.add(
            "masked_prior_preservation_weight",
            full["masked_prior_preservation_weight"],
            "off: it compares with the model without its adapter, and no adapter is trained",
            ours=0,
        )
    return made
