"""Import of OneTrainer's optimizers: ours with the same update rule and the shared numbers. Others are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.util.config.BaseConfig import VERSION_KEY
from modules.util.config.faults import show
from modules.util.config.foreign.Notes import Notes
from modules.util.config.optimizer.meanings import FIELDS
from modules.util.config.optimizer.tables import DEFAULTS
from modules.util.enum.choices import Optimizer
from modules.util.errors import ConfigError, UnsupportedError

Data = dict[str, Any]

_SAME_RULE = {
    "CAME_8BIT": "CAME",
    "AdEMAMix": "ADEMAMIX",
    "AdEMAMix_8BIT": "ADEMAMIX_8BIT",
    "LAMB": "LAMB_8BIT",
    "LARS": "LARS_8BIT",
}
_ALL_IN_32_BITS = {"min_8bit_size": 10**12}
"""The parameter that gives the rules of bitsandbytes a state of 32 bits: no weight has that many numbers."""
_USUAL_NUMBERS = ("beta1", "beta2", "eps", "weight_decay")
_NUMBERS = {
    "ADAFACTOR": ("beta1", "eps", "weight_decay"),
    "ADAGRAD": ("eps", "weight_decay"),
    "CAME": ("beta1", "beta2", "weight_decay"),
    "LION": ("beta1", "beta2", "weight_decay"),
    "LION_8BIT": ("beta1", "beta2", "weight_decay"),
    "RMSPROP": ("eps", "weight_decay"),
    "SCHEDULE_FREE_SGD": ("eps", "weight_decay", "momentum"),
    "SGD": ("weight_decay", "momentum"),
    "ADAGRAD_8BIT": ("eps", "weight_decay"),
    "DADAPT_ADA_GRAD": ("eps", "weight_decay", "momentum"),
    "DADAPT_LION": ("beta1", "beta2", "weight_decay"),
    "DADAPT_SGD": ("weight_decay", "momentum"),
    "LARS_8BIT": ("weight_decay", "momentum"),
    "MUON": ("weight_decay", "momentum"),
    "RMSPROP_8BIT": ("eps", "weight_decay"),
    "SGD_8BIT": ("weight_decay", "momentum"),
    "TIGER": ("beta1", "weight_decay"),
    "LION_ADV": ("beta1", "beta2", "weight_decay"),
    "SIGNSGD_ADV": ("weight_decay", "momentum"),
    "MUON_ADV": ("beta1", "weight_decay"),
}
"""The optimizer fields of ours that an update rule uses, if they are not the usual ones."""
_DECAYING = ("cautious_wd", "nnmf_factor")
_LIKE_ADAM = (*_DECAYING, "use_atan2", "nesterov")
_LIKE_MUON = (
    *_DECAYING, "nesterov", "ns_steps", "rms_rescaling", "normuon_variant", "accelerated_ns", "approx_mars",
    "muon_hidden_layers", "muon_adam_regex", "muon_adam_lr",
)  # fmt: skip
_SAME_CLASS = (
    *("ADAFACTOR", "ADAGRAD_8BIT", "ADAM_8BIT", "ADAMW_8BIT", "LAMB_8BIT", "LION_8BIT"),
    *("PRODIGY_PLUS_SCHEDULE_FREE", "RMSPROP_8BIT", "SGD_8BIT"),
)
"""Update rules of which all parameters here mean the same in OneTrainer, which has no ``use_focus``."""
_PARAMS = {
    **{
        name: tuple(key for key in DEFAULTS[Optimizer(name)] if key not in (*FIELDS, "use_focus"))
        for name in _SAME_CLASS
    },
    "ADAMW_ADV": (*_LIKE_ADAM, "use_bias_correction"),
    "ADOPT_ADV": _LIKE_ADAM,
    "LION_ADV": (*_DECAYING, "auto_kappa_p"),
    "SIGNSGD_ADV": (*_DECAYING, "nesterov"),
    "PRODIGY_ADV": (
        *_LIKE_ADAM,
        "beta3",
        "d0",
        "d_coef",
        "growth_rate",
        "safeguard_warmup",
        "slice_p",
        "prodigy_steps",
        "d_limiter",
    ),
    "MUON_ADV": (*_LIKE_MUON, "beta2_normuon"),
    "ADAMUON_ADV": (*_LIKE_MUON, "use_atan2"),
    "ADAGRAD": ("lr_decay", "initial_accumulator_value"),
    "ADAM": ("amsgrad",),
    "ADEMAMIX": ("alpha",),
    "ADEMAMIX_8BIT": ("alpha", "min_8bit_size"),
    "AIDA": ("k", "xi", "rectify", "n_sma_threshold", "degenerated_to_sgd", "ams_bound"),
    "ADABELIEF": ("rectify", "n_sma_threshold", "degenerated_to_sgd", "ams_bound"),
    "CAME": ("eps2", "clip_threshold", "ams_bound"),
    "DADAPT_ADAM": ("d0", "growth_rate"),
    "DADAPT_ADAN": ("d0", "growth_rate"),
    "DADAPT_ADA_GRAD": ("d0", "growth_rate"),
    "DADAPT_LION": ("d0",),
    "DADAPT_SGD": ("d0", "growth_rate"),
    "LARS_8BIT": ("min_8bit_size", "max_unorm"),
    "MUON": ("nesterov", "ns_steps", "muon_hidden_layers", "muon_adam_regex", "muon_adam_lr"),
    "YOGI": ("initial_accumulator",),
    "ADAMW": ("amsgrad",),
    "PRODIGY": ("d0", "d_coef", "growth_rate", "safeguard_warmup"),
    "RMSPROP": ("alpha", "centered"),
    "SCHEDULE_FREE_ADAMW": ("r", "weight_lr_power"),
    "SCHEDULE_FREE_SGD": ("r", "weight_lr_power"),
    "SGD": ("nesterov", "dampening"),
}
"""Further arguments of update rules that mean the same in both programs."""
_RENAMED: Mapping[str, Mapping[str, tuple[str, bool | float]]] = {
    "PRODIGY": {"decouple": ("weight_decouple", True), "use_bias_correction": ("bias_correction", False)},
    "DADAPT_ADAM": {"decouple": ("weight_decouple", False), "use_bias_correction": ("bias_correction", False)},
    "ADABELIEF": {"decoupled_decay": ("weight_decouple", True)},
    "TIGER": {"decoupled_decay": ("weight_decouple", True)},
    "YOGI": {"decoupled_decay": ("weight_decouple", True)},
    "AIDA": {"decoupled_decay": ("weight_decouple", False)},
    "ADOPT": {"decoupled_decay": ("weight_decouple", False)},
    "CAME": {"eps": ("eps1", 1e-30)},
}
"""Arguments of OneTrainer: our name, and what our class does without it."""
_DECOUPLED_THERE: Mapping[str, Data] = {
    "AdEMAMix": {"weight_decouple": True},
    "DADAPT_LION": {"weight_decouple": True},
}
"""Arguments of ours for what OneTrainer's class always does."""
_IDLE = (
    *("slice_p", "log_every", "stochastic_rounding", "fsdp_in_use", "use_triton"),
    *("min_8bit_size", "quant_block_size"),
)
"""Arguments that only affect memory or messages, and stochastic rounding, which is handled separately."""
_BY_MOMENTUM = ("nesterov", "dampening", "block_wise")
_BY_NORM = ("bias_correction", "adam_w_mode", "amsgrad", "block_wise")
_UNUSED_THERE = {
    "LAMB": _BY_NORM,
    "LAMB_8BIT": _BY_NORM,
    "LARS": _BY_MOMENTUM,
    "LARS_8BIT": _BY_MOMENTUM,
    "SGD_8BIT": _BY_MOMENTUM,
    "RMSPROP": ("momentum",),
    "RMSPROP_8BIT": ("momentum",),
    "ADAGRAD_8BIT": ("optim_bits",),
    "AIDA": ("r",),
    "YOGI": ("r",),
}
"""Arguments that have no effect in OneTrainer, because its class of this name does not use them."""
_AS_HERE: Mapping[str, Data] = {
    "ADAGRAD_8BIT": {"lr_decay": 0, "initial_accumulator_value": 0},
    "AdEMAMix": {"beta3": 0.9999},
    "AdEMAMix_8BIT": {"beta3": 0.9999},
    "CAME": {"beta3": 0.9999},
    "CAME_8BIT": {"beta3": 0.9999},
    "DADAPT_ADAN": {"beta3": 0.99},
    "LAMB": {"max_unorm": 1.0},
    "LAMB_8BIT": {"max_unorm": 1.0},
    "MUON": {"MuonWithAuxAdam": True},
}
"""Arguments that cannot be set here, and the values that they always have here."""
_OTHER_STEPS = {"DADAPT_ADAN": "its class here weighs changes of the gradient differently, so its steps differ"}
"""Rules whose class here takes other steps than the one of OneTrainer."""
_NEED_MOMENTUM = ("LARS", "LARS_8BIT", "SCHEDULE_FREE_SGD", "SGD_8BIT")
_ALWAYS = {
    "ADABELIEF": ("degenerated_to_sgd",),
    "ADAFACTOR": ("scale_parameter", "relative_step"),
    "AIDA": ("degenerated_to_sgd",),
    "ADAMW_ADV": ("use_bias_correction",),
    "PRODIGY_ADV": ("d_limiter",),
    "MUON_ADV": ("nesterov",),
    "ADAMUON_ADV": ("nesterov",),
    "PRODIGY_PLUS_SCHEDULE_FREE": ("split_groups_mean",),
}
"""Arguments that are carried over even at their default, because ours differs."""
_UNSET: Mapping[str, Data] = {
    "AdEMAMix": {"weight_decay": 0.01},
    "LION_8BIT": {"beta2": 0.999},
    "SCHEDULE_FREE_ADAMW": {"weight_decay": 0.01},
    "TIGER": {"weight_decay": 0.0},
    "DADAPT_SGD": {"momentum": 0.0},
    "ADAMW_ADV": {"beta1": 0.0, "beta2": 0.99},
    "ADOPT_ADV": {"beta1": 0.0},
    "PRODIGY_ADV": {"beta1": 0.0, "beta2": 0.99},
    "SIGNSGD_ADV": {"momentum": 0.0},
}
"""Numbers of optimizers there if a file leaves them empty, as far as our classes have others (``create_optimizer``)."""
_AS_BUILT = {"block_wise": True, "fused": True, "percentile_clipping": 100, "optim_bits": 32}
"""Features that our update rules always have."""


_HIGHEST_RATE = 1e-2
_USUAL_RATE = 1e-4


def import_optimizer(
    full: Mapping[str, Any], defaults: Mapping[str, Any], notes: Notes, lenient: bool = False
) -> Data:
    """Our optimizer section, plus a learning rate if that of the file is not meant for this optimizer.

    Args:
        full: the config with its defaults.
        defaults: the defaults of its optimizer.
        lenient: use the nearest supported update rule and note it.

    Raises:
        UnsupportedError: the update rule is not supported.
        ConfigError: there is no optimizer.
    """
    given = full["optimizer"]
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{show(given)} is not an object", "optimizer", "export the config from OneTrainer again"
        )
    theirs = str(given.get("optimizer"))
    given = _remembered(given, theirs, full, defaults)
    unset = _UNSET.get(theirs, {})
    given = {**given, **{name: value for name, value in unset.items() if given.get(name) is None}}
    name = _SAME_RULE.get(theirs, theirs)
    if name not in Optimizer.__members__:
        return _nearest(theirs, full, notes, lenient)
    given, fixed = _with_momentum(theirs, given, notes), _of_another_width(theirs, name, given, notes)
    numbers = _NUMBERS.get(name, _USUAL_NUMBERS)
    params = {
        key: given[key]
        for key in _PARAMS.get(name, ())
        if given.get(key) is not None and (given[key] != defaults.get(key) or key in _ALWAYS.get(name, ()))
    }
    if theirs in _OTHER_STEPS:
        notes.add("optimizer.optimizer", theirs, _OTHER_STEPS[theirs], ours=name)
    params |= {**_renamed(name, given, notes), **_DECOUPLED_THERE.get(theirs, {}), **fixed}
    carried = {
        *("optimizer", "fused_back_pass", VERSION_KEY),
        *numbers,
        *params,
        *_RENAMED.get(name, {}),
        *_IDLE,
        *_UNUSED_THERE.get(theirs, ()),
    }
    built = {**_AS_BUILT, **_AS_HERE.get(theirs, {})}
    rest = {key: value for key, value in given.items() if value is not None and value != built.get(key)}
    notes.differences(rest, defaults, carried, "optimizer")
    made = {"optimizer": name, "params": params, **{key: given.get(key) for key in numbers}}
    if given.get("fused_back_pass") is True:
        made["fused_back_pass"] = True
        return {"optimizer": made, **_clipping(full, notes)}
    return {"optimizer": made}


def _of_another_width(theirs: str, name: str, given: Mapping[str, Any], notes: Notes) -> Data:
    """Parameters of a rule whose state has another number of bits here. Its formula stays the same.

    LAMB and LARS are those of bitsandbytes in OneTrainer: they limit a step by the norm of the weight, while ours of
    these names scale it. Those with a state of 8 bits in blocks do not limit it.
    """
    params: Data = {}
    if theirs in ("LAMB", "LARS"):
        why, params = f"{name} with a state of 32 bits: {theirs} has another formula here", _ALL_IN_32_BITS
    elif theirs == "LAMB_8BIT" and given.get("block_wise") is not True:
        why, params = "its state has 32 bits: only memory", _ALL_IN_32_BITS
    elif theirs.endswith("_8BIT") and not name.endswith("_8BIT"):
        why = f"{name} instead, whose state has 32 bits: only memory"
    else:
        return params
    notes.add("optimizer.optimizer", theirs, why, ours=name, changes_weights=False)
    return params


def _with_momentum(theirs: str, given: Mapping[str, Any], notes: Notes) -> Mapping[str, Any]:
    """The optimizer with a momentum where its class refuses to train without one."""
    if theirs not in _NEED_MOMENTUM or given.get("momentum"):
        return given
    why = f"0.9 instead: {theirs} needs momentum, and OneTrainer does not start without it"
    notes.add("optimizer.momentum", given.get("momentum") or 0, why, ours=0.9)
    return {**given, "momentum": None}


def _remembered(
    given: Mapping[str, Any], theirs: str, full: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The optimizer with the numbers that OneTrainer's window fills in if a file gives only its name, as
    presets do.
    """
    kept = full.get("optimizer_defaults")
    own = kept.get(theirs) if isinstance(kept, Mapping) else None
    named = {key: value for key, value in given.items() if value != defaults.get(key)}
    if not isinstance(own, Mapping) or named.keys() - {"optimizer", VERSION_KEY}:
        return given
    return {**given, **own, "optimizer": theirs}


def _clipping(full: Mapping[str, Any], notes: Notes) -> Data:
    """Gradient clipping. In OneTrainer, the fused backward step clips the gradient of each weight separately."""
    limit = full["clip_grad_norm"]
    if not isinstance(limit, (int, float)) or not limit:
        return {}
    why = "each gradient is clipped separately in the backward pass"
    notes.moved("clip_grad_norm", limit, "clip_each_weight = true", why)
    return {"clip_each_weight": True}


def _renamed(name: str, given: Mapping[str, Any], notes: Notes) -> Data:
    """Arguments that have another name here."""
    made: Data = {}
    for theirs, (ours, default) in _RENAMED.get(name, {}).items():
        value = given.get(theirs)
        if ours == "weight_decouple" and not given.get("weight_decay"):
            continue  # there is nothing to decouple
        if isinstance(value, type(default)) and value != default:
            made[ours] = value
            notes.moved(f"optimizer.{theirs}", value, f"optimizer.params.{ours}", "another name")
    return made


def _nearest(theirs: str, full: Mapping[str, Any], notes: Notes, lenient: bool) -> Data:
    plain = theirs.removesuffix("_8BIT").removesuffix("_ADV")
    near = "PRODIGY" if "PRODIGY" in theirs else plain
    if near not in Optimizer.__members__:
        near = ""
    if not lenient or not near:
        raise UnsupportedError(
            f"the optimizer {show(theirs)} is not supported",
            "optimizer.optimizer",
            f"nearest: {near}; --lenient uses it" if near else "docs/config.md lists what is supported",
        )
    notes.add(
        "optimizer.optimizer", theirs, f"not supported; {near} instead, with its own numbers", ours=near
    )
    made: Data = {"optimizer": {"optimizer": near}}
    rate = full["learning_rate"]
    if near == "ADAMW" and isinstance(rate, (int, float)) and rate > _HIGHEST_RATE:
        notes.add(
            "learning_rate", rate, f"{_USUAL_RATE:g} instead, as ADAMW does not adapt it", ours=_USUAL_RATE
        )
        made["learning_rate"] = _USUAL_RATE
    return made
