"""Import of noise and learning rates that mean something else in OneTrainer under the same name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.util.config.foreign.Notes import Notes
from modules.util.enum.ModelType import ModelType

Data = dict[str, Any]
_REX_D = 0.9
_SCHEDULE_FREE = {"SCHEDULE_FREE_ADAMW": True, "SCHEDULE_FREE_SGD": True, "PRODIGY_PLUS_SCHEDULE_FREE": False}
"""Optimizers whose schedule is always CONSTANT there, and whether they have a warm-up of their own."""
_TRAINS_VARIANCE = ("PixArtAlphaPipeline",)
"""Models whose variance is trained there."""


def noise_and_rates(full: Mapping[str, Any], family: ModelType, notes: Notes) -> Data:
    """Further settings of ours that reproduce the noise and learning rates of a OneTrainer config (with its
    defaults).
    """
    made = without_schedule(full)
    schedule = full["learning_rate_scheduler"]
    if made:
        constant = made["learning_rate_scheduler"]
        if schedule != constant:
            why = "in OneTrainer, this optimizer always has this schedule"
            notes.moved("learning_rate_scheduler", schedule, constant, why)
        schedule = constant
    if schedule == "REX":
        made["learning_rate_rex_d"] = _REX_D
        why = "the constant in OneTrainer's formula"
        notes.moved("learning_rate_scheduler", schedule, f"learning_rate_rex_d = {_REX_D}", why)
    if schedule == "COSINE_WITH_RESTARTS":
        made["learning_rate_ends_high"] = True
        why = "in OneTrainer, it ends at the full rate"
        notes.moved("learning_rate_scheduler", schedule, "learning_rate_ends_high = true", why)
    trains_variance = family.spec.pipeline_class in _TRAINS_VARIANCE
    made["vb_loss_strength"] = full["vb_loss_strength"] if trains_variance else 0.0
    made["custom_learning_rate_scheduler"] = full["custom_learning_rate_scheduler"] or ""
    made["scheduler_params"] = _arguments(full["scheduler_params"], notes)
    if full["perturbation_noise_weight"]:
        made["perturbation_on_target"] = True
        notes.moved(
            "perturbation_noise_weight",
            full["perturbation_noise_weight"],
            "perturbation_on_target = true",
            "OneTrainer adds this noise to input and target",
        )
    if full["generalized_offset_noise"] is True:
        acts = full["offset_noise_weight"] and not family.spec.flow_matching
        made["generalized_offset_noise"] = bool(acts)
        if acts:
            notes.add(
                "generalized_offset_noise",
                True,
                "imported, but low noise levels get a larger share of the offset here",
                ours=True,
            )
        else:
            notes.moved("generalized_offset_noise", True, "false", "has no effect in OneTrainer")
    shifted = full["timestep_shift"] != 1 or full["dynamic_timestep_shifting"] is True
    cut = full["min_noising_strength"] != 0 or full["max_noising_strength"] != 1
    if shifted and cut:
        made["noising_range_before_shift"] = True
        notes.moved(
            "min_noising_strength",
            full["min_noising_strength"],
            "noising_range_before_shift = true",
            "OneTrainer applies the range before the shift",
        )
    if shifted and full["timestep_distribution"] == "SIGMOID":
        notes.add("timestep_distribution", "SIGMOID", "shifted once here, but twice in OneTrainer")
    return made


def without_schedule(full: Mapping[str, Any]) -> Data:
    """Our schedule and warm-up for an optimizer that has no schedule there; empty for others.

    Their own warm-up counts optimizer steps, whatever is accumulated.
    """
    chosen = full["optimizer"]
    name = chosen.get("optimizer") if isinstance(chosen, Mapping) else None
    if name not in _SCHEDULE_FREE:
        return {}
    steps = full["learning_rate_warmup_steps"]
    warms_up = _SCHEDULE_FREE[name] and isinstance(steps, (int, float)) and steps > 1
    return {
        "learning_rate_scheduler": "CONSTANT",
        "learning_rate_warmup_steps": float(steps) if warms_up else 0.0,
    }


def _arguments(given: object, notes: Notes) -> str:
    """Convert a list of ``{"key": ..., "value": ...}`` to our text. The values are the same literals and
    placeholders.
    """
    made = []
    for one in given if isinstance(given, list) else []:
        name, value = (one.get("key"), one.get("value")) if isinstance(one, Mapping) else (None, None)
        if not isinstance(name, str) or not isinstance(value, str) or ";" in value:
            notes.add("scheduler_params", one, "left out: it needs a name and a text", faulty=True)
        elif name.strip():
            made.append(f"{name.strip()}={value.strip()}")
    return "; ".join(made)
