"""OneTrainer's optimizers: ours of the same rule, with the numbers both have; others are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.util.config.BaseConfig import VERSION_KEY
from modules.util.config.faults import show
from modules.util.config.onetrainer.Notes import Notes
from modules.util.enum.choices import Optimizer
from modules.util.errors import ConfigError, UnsupportedError

Data = dict[str, Any]

_SAME_RULE = {
    "ADAGRAD_8BIT": "ADAGRAD",
    "RMSPROP_8BIT": "RMSPROP",
    "SGD_8BIT": "SGD",
    "LAMB_8BIT": "LAMB",
    "CAME_8BIT": "CAME",
    "AdEMAMix": "ADEMAMIX",
    "AdEMAMix_8BIT": "ADEMAMIX",
}
_USUAL_NUMBERS = ("beta1", "beta2", "eps", "weight_decay")
_NUMBERS = {
    "ADAFACTOR": ("beta1", "eps", "weight_decay"),
    "ADAGRAD": ("eps", "weight_decay"),
    "CAME": ("beta1", "beta2", "weight_decay"),
    "LION": ("beta1", "beta2", "weight_decay"),
    "LION_8BIT": ("beta1", "beta2", "weight_decay"),
    "RMSPROP": ("eps", "weight_decay", "momentum"),
    "SCHEDULE_FREE_SGD": ("eps", "weight_decay", "momentum"),
    "SGD": ("weight_decay", "momentum"),
    "TIGER": ("beta1", "weight_decay"),
}
"""Which of our optimizer fields an update rule has, where they are not the usual ones."""
_PARAMS = {
    "ADAFACTOR": (
        "eps2",
        "clip_threshold",
        "decay_rate",
        "scale_parameter",
        "relative_step",
        "warmup_init",
    ),
    "ADAGRAD": ("lr_decay", "initial_accumulator_value"),
    "ADAM": ("amsgrad",),
    "ADAM_8BIT": ("min_8bit_size", "is_paged"),
    "ADAMW": ("amsgrad",),
    "ADAMW_8BIT": ("min_8bit_size", "is_paged"),
    "LION_8BIT": ("min_8bit_size", "is_paged"),
    "PRODIGY": ("d0", "d_coef", "growth_rate", "safeguard_warmup"),
    "RMSPROP": ("alpha", "centered"),
    "SCHEDULE_FREE_ADAMW": ("r", "weight_lr_power"),
    "SCHEDULE_FREE_SGD": ("r", "weight_lr_power"),
    "SGD": ("nesterov", "dampening"),
}
"""Further arguments of update rules that mean the same here and there."""
_ALWAYS = {"ADAFACTOR": ("scale_parameter", "relative_step")}
"""Arguments that are carried over at their default too, which is another one here."""
_AS_BUILT = {"block_wise": True, "fused": True, "percentile_clipping": 100, "optim_bits": 32}
"""What our update rules do anyway."""


def import_optimizer(given: Any, defaults: Mapping[str, Any], notes: Notes) -> Data:
    """Our optimizer section.

    Raises:
        UnsupportedError: an update rule that is not offered.
        ConfigError: no optimizer at all.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{show(given)} is not an object", "optimizer", "export the config from OneTrainer again"
        )
    theirs = str(given.get("optimizer"))
    name = _SAME_RULE.get(theirs, theirs)
    if name not in Optimizer.__members__:
        raise UnsupportedError(
            f"the optimizer {show(theirs)} is not offered",
            "optimizer.optimizer",
            _instead(theirs),
        )
    if theirs.endswith("_8BIT") and name != theirs:
        notes.add(
            "optimizer.optimizer", f" = {theirs}: its 8-bit states are not offered; {name} instead", True
        )
    numbers = _NUMBERS.get(name, _USUAL_NUMBERS)
    params = {
        key: given[key]
        for key in _PARAMS.get(name, ())
        if given.get(key) is not None and (given[key] != defaults.get(key) or key in _ALWAYS.get(name, ()))
    }
    carried = {"optimizer", "fused_back_pass", *numbers, *params, VERSION_KEY}
    rest = {key: value for key, value in given.items() if value is not None and value != _AS_BUILT.get(key)}
    notes.differences(rest, defaults, carried, "optimizer")
    made = {"optimizer": name, "params": params, **{key: given.get(key) for key in numbers}}
    if given.get("fused_back_pass") is True:
        made["fused_back_pass"] = True
    return made


def _instead(theirs: str) -> str:
    near = "PRODIGY" if "PRODIGY" in theirs or theirs.startswith("DADAPT") else theirs.split("_")[0]
    offered = near if near in Optimizer.__members__ else ", ".join(Optimizer.__members__)
    return f"choose another one in OneTrainer and export the config again: {offered}"
