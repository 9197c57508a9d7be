"""The diffusers caches suitable for rollouts, with their parameters and configs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from modules.accelerator.base import Params, is_number

CALLBACK = "current_timestep_callback"


@dataclass(frozen=True)
class Kind:
    """A check of a value: a description of valid values, and the check."""

    words: str
    accepts: Callable[[Any], bool]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _numbers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(map(is_number, value))


def _texts(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and all(isinstance(one, str) and one for one in value)
    )


NOT_NEGATIVE = Kind("a non-negative number", lambda v: is_number(v) and v >= 0)
SHARE = Kind("a number from 0 to 1", lambda v: is_number(v) and 0 <= v <= 1)
COUNT = Kind("a positive whole number", lambda v: _whole(v) and v >= 1)
INDEX = Kind("a non-negative whole number", lambda v: _whole(v) and v >= 0)
FLAG = Kind("true or false", lambda v: isinstance(v, bool))
NUMBERS = Kind("a list of numbers", _numbers)
RANGE = Kind(
    "two whole numbers [low, high]",
    lambda v: _numbers(v) and len(v) == 2 and all(map(_whole, v)) and v[0] < v[1],
)
NAMES = Kind("a list of names", _texts)
DTYPE = Kind("float32, float16 or bfloat16", lambda v: v in ("float32", "float16", "bfloat16"))
FORMAT = Kind("BCHW", lambda v: v == "BCHW")


@dataclass(frozen=True)
class CacheMethod:
    """One cache of diffusers.

    Attributes:
        kinds: parameter to the kind of value it takes.
        defaults: our defaults that differ from those of diffusers.
        hook: prefix of the names of its hooks on blocks or attentions.
        asks_for_timestep: whether it depends on the timestep of the call.
    """

    kinds: dict[str, Kind]
    hook: str
    defaults: dict[str, Any]
    asks_for_timestep: bool = False


def _attention_kinds(*sorts: str) -> dict[str, Kind]:
    kinds = {}
    for sort in sorts:
        kinds[f"{sort}_attention_block_skip_range"] = COUNT
        kinds[f"{sort}_attention_timestep_skip_range"] = RANGE
        kinds[f"{sort}_attention_block_identifiers"] = NAMES
    return kinds


METHODS = {
    "FirstBlockCache": CacheMethod({"threshold": NOT_NEGATIVE}, "fbc", {}),
    "TaylorSeerCache": CacheMethod(
        {
            "cache_interval": COUNT,
            "disable_cache_before_step": COUNT,
            "disable_cache_after_step": COUNT,
            "max_order": INDEX,
            "taylor_factors_dtype": DTYPE,
            "use_lite_mode": FLAG,
            "cache_identifiers": NAMES,
            "skip_predict_identifiers": NAMES,
        },
        "taylorseer",
        {},
    ),
    "MagCache": CacheMethod(
        {
            "threshold": NOT_NEGATIVE,
            "max_skip_steps": INDEX,
            "retention_ratio": SHARE,
            "num_inference_steps": COUNT,
            "mag_ratios": NUMBERS,
            "calibrate": FLAG,
        },
        "mag_cache",
        {},
    ),
    "PyramidAttentionBroadcast": CacheMethod(
        _attention_kinds("spatial", "cross"),
        "pyramid_attention_broadcast",
        {"spatial_attention_block_skip_range": 2},
        asks_for_timestep=True,
    ),
    "FasterCache": CacheMethod(
        {
            **_attention_kinds("spatial"),
            "attention_weight": SHARE,
            "is_guidance_distilled": FLAG,
            "unconditional_batch_skip_range": COUNT,
            "unconditional_batch_timestep_skip_range": RANGE,
            "tensor_format": FORMAT,
        },
        "faster_cache_block",
        {"is_guidance_distilled": True, "tensor_format": "BCHW", "attention_weight": 0.5},
        asks_for_timestep=True,
    ),
}


def read_settings(method: str, params: Params) -> dict[str, Any]:
    """Check the parameters of a method.

    Raises:
        ConfigError: a parameter is unknown, or its value is of the wrong kind.
    """
    kinds = METHODS[method].kinds
    settings = dict(METHODS[method].defaults)
    for key, value in params.rest().items():
        if key not in kinds:
            raise params.fault(key, f"{method} has no parameter {key!r}", f"parameters: {', '.join(kinds)}")
        if not kinds[key].accepts(value):
            raise params.fault(key, f"{value!r} is not {kinds[key].words}")
        settings[key] = value
    if method == "MagCache" and not settings.get("calibrate") and "mag_ratios" not in settings:
        raise params.fault(
            "mag_ratios",
            "MagCache needs the magnitude ratios of the model",
            "run once with calibrate true, which logs them, or use FirstBlockCache",
        )
    return settings


def make_config(method: str, settings: dict[str, Any], timestep: Callable[[], float]) -> Any:
    """Make the diffusers config of one rollout (a new one each time, because enabling may modify it)."""
    import diffusers
    import torch

    values: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) and key != "mag_ratios" else v for key, v in settings.items()
    }
    if "taylor_factors_dtype" in values:
        values["taylor_factors_dtype"] = getattr(torch, values["taylor_factors_dtype"])
    if "attention_weight" in values:
        weight = values.pop("attention_weight")
        values["attention_weight_callback"] = lambda _: weight
    if METHODS[method].asks_for_timestep:
        values[CALLBACK] = timestep
    return getattr(diffusers, f"{method}Config")(**values)
