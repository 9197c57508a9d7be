"""Requirements of a model's scheduler config, and its options that are not supported here."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from modules.model.noising.schedule import FLOW_STEPS
from modules.util.errors import UnsupportedError

SHOWN = 12
MOST_STEPS = 100_000
"""More timesteps than any published model has, because a table of them is allocated."""

_log = logging.getLogger(__name__)

# used by training and by every sampler of this kind
_DISCRETE_FOLLOWED = frozenset({
    "num_train_timesteps", "beta_start", "beta_end", "beta_schedule", "trained_betas", "prediction_type",
    "rescale_betas_zero_snr", "steps_offset", "timestep_spacing",
})  # fmt: skip
_FLOW_FOLLOWED = frozenset({
    "num_train_timesteps", "prediction_type", "shift", "flow_shift", "use_dynamic_shifting", "base_shift", "max_shift",
    "base_image_seq_len", "max_image_seq_len", "shift_terminal", "time_shift_type", "solver_order",
    "use_karras_sigmas", "use_exponential_sigmas", "stochastic_sampling", "use_flow_sigmas", "invert_sigmas",
})  # fmt: skip
# sub-options of disabled options, and of schedulers that are not among the samplers
_IDLE = frozenset(
    {"clip_sample_range", "dynamic_thresholding_ratio", "sample_max_value", "skip_prk_steps", "variance_type"}
)
# flow sigmas are not derived from these
_IDLE_IN_FLOW = frozenset(
    {"beta_start", "beta_end", "beta_schedule", "trained_betas", "rescale_betas_zero_snr", "steps_offset"}
    | {"timestep_spacing"}
)
# other fields, and the values that match what is done anyway; switches not named here are off
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "algorithm_type": ("dpmsolver++",),
    "solver_type": ("midpoint", "bh2"),
    "solver_order": (2,),
    "flow_shift": (1.0,),
    "lower_order_final": (True,),
    "predict_x0": (True,),
    "final_sigmas_type": ("zero",),
    "interpolation_type": ("linear",),
    "timestep_type": ("discrete",),
    "lambda_min_clipped": (-math.inf,),
    "disable_corrector": ([],),
    "time_shift_type": ("exponential",),
}
_SPACINGS = ("leading", "trailing", "linspace")
_ANY = (-math.inf, math.inf)
# lower and upper limit of a field, both exclusive
_FLOW_NUMBERS = {
    "shift": (0.0, math.inf), "flow_shift": (0.0, math.inf), "base_shift": _ANY, "max_shift": _ANY,
    "base_image_seq_len": _ANY, "max_image_seq_len": _ANY, "shift_terminal": (-1e-9, 1.0),
}  # fmt: skip


def unfollowed(config: Mapping[str, Any], flow: bool) -> dict[str, Any]:
    """The fields with unsupported values."""
    known = _IDLE | (_FLOW_FOLLOWED | _IDLE_IN_FLOW if flow else _DISCRETE_FOLLOWED)
    return {
        name: value
        for name, value in config.items()
        if not name.startswith("_")
        and name not in known
        and value is not None
        and value not in _NEUTRAL.get(name, (False,))
    }


def check_scheduler_config(config: Mapping[str, Any], flow: bool, label: str, source: object) -> None:
    """Refuse a config of another kind of model, and report other unsupported fields in one warning.

    Args:
        flow: whether the family uses flow matching.
        label: its displayed name.
        source: source of the model.

    Raises:
        UnsupportedError: the model would be trained with another noise schedule than its own.
    """
    for name, fits in _kind(config, flow).items():
        if not fits:
            raise UnsupportedError(
                f"the scheduler config of {source} has {name} = {str(config.get(name))[:80]!r}, with which a "
                f"{label} model cannot be used",
                field="base_model_name",
                hint="choose the matching model type, or correct scheduler/scheduler_config.json",
            )
    ignored = unfollowed(config, flow)
    if ignored:
        shown = ", ".join(f"{name} = {str(value)[:40]}" for name, value in sorted(ignored.items())[:SHOWN])
        more = f" and {len(ignored) - SHOWN} more" if len(ignored) > SHOWN else ""
        _log.warning(
            "the scheduler config of %s has options that training and samples here ignore: %s%s; the sampler's name "
            "(such as DPMPP_KARRAS) decides instead",
            source,
            shown,
            more,
        )


def _is_number(value: Any, above: float, below: float, needed: bool = False) -> bool:
    """Return whether it is a number between the limits, or missing and not needed."""
    if value is None:
        return not needed
    return isinstance(value, (int, float)) and not isinstance(value, bool) and above < value < below


def _is_count(value: Any, least: int, most: int) -> bool:
    """Return whether it is an integer between the limits."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _are_betas(values: Any) -> bool:
    """Return whether it is missing, or a table of noise variances."""
    if values is None:
        return True
    if not isinstance(values, list) or not 0 < len(values) <= MOST_STEPS:
        return False
    return all(value is not None and _is_number(value, -1e-9, 1.0) for value in values)


def _kind(config: Mapping[str, Any], flow: bool) -> dict[str, bool]:
    """The fields that are essential for training and sampling, and whether they are supported."""
    if not flow:
        # without a table, and except for the cosine schedule, both ends decide: an empty one is not a missing one
        drawn = config.get("trained_betas") is None and config.get("beta_schedule") != "squaredcos_cap_v2"
        return {
            "num_train_timesteps": _is_count(config.get("num_train_timesteps", 1000), 1, MOST_STEPS),
            "beta_start": _is_number(config.get("beta_start", 0.0001 if drawn else None), 0.0, 1.0, drawn),
            "beta_end": _is_number(config.get("beta_end", 0.02 if drawn else None), 0.0, 1.0, drawn),
            "trained_betas": _are_betas(config.get("trained_betas")),
            "steps_offset": _is_count(config.get("steps_offset", 0), 0, MOST_STEPS),
            "_class_name": not str(config.get("_class_name", "")).startswith("FlowMatch"),
            "use_flow_sigmas": not config.get("use_flow_sigmas"),
            "timestep_spacing": config.get("timestep_spacing", "leading") in _SPACINGS,
        }
    numbers = {name: _is_number(config.get(name), *ends) for name, ends in _FLOW_NUMBERS.items()}
    return numbers | {
        "num_train_timesteps": config.get("num_train_timesteps", FLOW_STEPS) == FLOW_STEPS,
        "prediction_type": config.get("prediction_type") in (None, "flow_prediction"),
        "use_exponential_sigmas": not (
            config.get("use_karras_sigmas") and config.get("use_exponential_sigmas")
        ),
        "invert_sigmas": not config.get("invert_sigmas"),
        "time_shift_type": config.get("time_shift_type") in (None, "exponential", "linear"),
    }
