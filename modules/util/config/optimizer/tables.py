"""The parameters of every update rule with their defaults: one table for the window, the documents and the checks."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from modules.util.config.optimizer.meanings import FIELDS, MEANINGS, OTHERWISE
from modules.util.config.optimizer.OptimizerParameter import OptimizerParameter, Value
from modules.util.config.section.OptimizerConfig import OptimizerConfig
from modules.util.enum.choices import Optimizer

Defaults = Mapping[str, Value]

_BETAS: Defaults = {"beta1": 0.9, "beta2": 0.999}
_TORCH: Defaults = {"maximize": False, "foreach": None}
_DECAY: Defaults = {"weight_decay": 0.0, "weight_decouple": False, "fixed_decay": False}
_DECOUPLED: Defaults = {**_DECAY, "weight_decouple": True}
_ADAPTING: Defaults = {"d0": 1e-6, "growth_rate": float("inf")}
_RECTIFY: Defaults = {
    "rectify": False, "n_sma_threshold": 5, "degenerated_to_sgd": True, "ams_bound": False
}  # fmt: skip
_PAGED: Defaults = {"min_8bit_size": 4096, "is_paged": False}
_SMALL: Defaults = {"min_8bit_size": 4096}
_MUON_LAYERS: Defaults = {
    "muon_hidden_layers": "block,layers,refiner", "muon_adam_regex": False, "muon_adam_lr": 3e-4
}  # fmt: skip
_ADVANCED: Defaults = {
    "weight_decay": 0.0, "cautious_wd": False, "centered_wd": 0.0, "centered_wd_mode": "float8",
    "orthogonal_gradient": "disabled", "nnmf_factor": False, "vector_reshape": False, "compiled_optimizer": False,
}  # fmt: skip
_ADAM_LIKE: Defaults = {
    **_ADVANCED, "fisher_wd": False, "use_atan2": False, "nesterov": False, "nesterov_coef": None,
    "state_precision": "auto", "factored_2nd": False
}  # fmt: skip
_MUON_LIKE: Defaults = {
    **{name: value for name, value in _ADVANCED.items() if name != "vector_reshape"},
    "nesterov": True, "nesterov_coef": None, "ns_steps": 5, "ns_eps": 1e-7, "rms_rescaling": True,
    "state_precision": "auto", "normuon_variant": False, "accelerated_ns": False, "cns_a_bound": None,
    "approx_mars": False, "mars_gamma": 0.025,
    "adam_eps": 1e-8, "adam_weight_decay": 0.0, "adam_use_bias_correction": True,
    "adam_use_atan2": False, "adam_orthogonal_gradient": "disabled", "adam_nesterov": False,
    "adam_nesterov_coef": None, "adam_state_precision": "auto", "adam_nnmf_factor": False, "adam_factored_2nd": False,
    **_MUON_LAYERS,
}  # fmt: skip

DEFAULTS: Mapping[Optimizer, Defaults] = {
    Optimizer.ADAMW: {**_BETAS, "eps": 1e-8, "weight_decay": 0.01, "amsgrad": False, **_TORCH, "fused": True},
    Optimizer.ADAM: {
        **_BETAS, "eps": 1e-8, "weight_decay": 0.0, "decoupled_weight_decay": False, "amsgrad": False, **_TORCH,
        "fused": True,
    },
    Optimizer.ADAMW_8BIT: {**_BETAS, "eps": 1e-8, "weight_decay": 0.01, **_PAGED},
    Optimizer.ADAM_8BIT: {**_BETAS, "eps": 1e-8, "weight_decay": 0.0, **_PAGED},
    Optimizer.LION_8BIT: {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, **_PAGED},
    Optimizer.ADAFACTOR: {
        "beta1": None, "eps": 1e-30, "eps2": 1e-3, "clip_threshold": 1.0, "decay_rate": -0.8, "weight_decay": 0.0,
        "scale_parameter": True, "relative_step": False, "warmup_init": False,
    },
    Optimizer.ADAGRAD: {
        "eps": 1e-10, "weight_decay": 0.0, "lr_decay": 0.0, "initial_accumulator_value": 0.0, **_TORCH, "fused": None,
    },
    Optimizer.RMSPROP: {
        "alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0, "centered": False, **_TORCH,
    },
    Optimizer.SGD: {
        "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, **_TORCH, "fused": None,
    },
    Optimizer.ADABELIEF: {**_BETAS, "eps": 1e-16, **_DECOUPLED, **_RECTIFY, **_TORCH},
    Optimizer.ADEMAMIX: {**_BETAS, "eps": 1e-8, **_DECAY, "alpha": 5.0, "t_alpha_beta3": None, **_TORCH},
    Optimizer.ADOPT: {"beta1": 0.9, "beta2": 0.9999, "eps": 1e-6, **_DECAY, **_TORCH},
    Optimizer.CAME: {
        **_BETAS, **_DECOUPLED, "clip_threshold": 1.0, "ams_bound": False, "eps1": 1e-30, "eps2": 1e-16, **_TORCH,
    },
    Optimizer.LAMB: {
        **_BETAS, "eps": 1e-6, **_DECOUPLED, "rectify": False, "n_sma_threshold": 5, "degenerated_to_sgd": False,
        "grad_averaging": True, "max_grad_norm": 1.0, "adam": False, "pre_norm": False, **_TORCH,
    },
    Optimizer.LION: {"beta1": 0.9, "beta2": 0.99, **_DECOUPLED, **_TORCH},
    Optimizer.PRODIGY: {
        **_BETAS, "beta3": None, "eps": 1e-8, **_DECOUPLED, **_ADAPTING, "d_coef": 1.0, "bias_correction": False,
        "safeguard_warmup": False, **_TORCH,
    },
    Optimizer.PRODIGY_PLUS_SCHEDULE_FREE: {
        "beta1": 0.9, "beta2": 0.99, "beta3": None, "eps": 1e-8, "weight_decay": 0.0, "weight_decay_by_lr": True,
        "d0": 1e-6, "d_coef": 1.0, "d_limiter": True, "prodigy_steps": 0, "schedulefree_c": 0.0, "split_groups": True,
        "split_groups_mean": False, "factored": True, "factored_fp32": True, "use_bias_correction": False,
        "use_stableadamw": True, "use_schedulefree": True, "use_speed": False, "use_cautious": False,
        "use_grams": False, "use_adopt": False, "use_orthograd": False, "use_focus": False,
    },
    Optimizer.SCHEDULE_FREE_ADAMW: {
        **_BETAS, "eps": 1e-8, "weight_decay": 0.0, "r": 0.0, "weight_lr_power": 2.0, "warmup_steps": 0,
        "decoupling_c": 0.0, "ams_bound": False, **_TORCH,
    },
    Optimizer.SCHEDULE_FREE_SGD: {
        "momentum": 0.9, "eps": 1e-8, "weight_decay": 0.0, "r": 0.0, "weight_lr_power": 2.0, "warmup_steps": 0,
        **_TORCH,
    },
    Optimizer.TIGER: {"beta1": 0.965, **_DECOUPLED, "weight_decay": 0.01, **_TORCH},
    Optimizer.AIDA: {**_BETAS, "eps": 1e-8, **_DECAY, "k": 2, "xi": 1e-20, **_RECTIFY, **_TORCH},
    Optimizer.DADAPT_ADAM: {**_BETAS, "eps": 1e-8, **_DECAY, **_ADAPTING, "bias_correction": False, **_TORCH},
    Optimizer.DADAPT_ADAN: {
        "beta1": 0.98, "beta2": 0.92, "eps": 1e-8, "weight_decay": 0.0, "weight_decouple": False, **_ADAPTING,
        **_TORCH,
    },
    Optimizer.DADAPT_ADA_GRAD: {"momentum": 0.0, "eps": 0.0, **_DECAY, **_ADAPTING, **_TORCH},
    Optimizer.DADAPT_LION: {**_BETAS, **_DECAY, "d0": 1e-6, **_TORCH},
    Optimizer.DADAPT_SGD: {"momentum": 0.9, **_DECAY, **_ADAPTING, **_TORCH},
    Optimizer.LARS: {
        "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "trust_coefficient": 1e-3, "nesterov": False, **_TORCH,
    },
    Optimizer.MUON: {
        "momentum": 0.95, "weight_decay": 0.0, "weight_decouple": True, "nesterov": True, "ns_steps": 5,
        "ns_coeffs": "original", "ns_method": "newton_schulz", "use_adjusted_lr": False, "adamw_wd": 0.0,
        "adamw_eps": 1e-10, **_TORCH, **_MUON_LAYERS,
    },
    Optimizer.YOGI: {**_BETAS, "eps": 1e-3, **_DECOUPLED, "initial_accumulator": 1e-6, **_TORCH},
    Optimizer.ADAGRAD_8BIT: {"eps": 1e-10, "weight_decay": 0.0, **_SMALL},
    Optimizer.ADEMAMIX_8BIT: {
        **_BETAS, "eps": 1e-8, "weight_decay": 0.01, "alpha": 5.0, "t_alpha": None, "t_beta3": None, **_PAGED,
    },
    Optimizer.LAMB_8BIT: {**_BETAS, "eps": 1e-8, "weight_decay": 0.0, **_SMALL},
    Optimizer.LARS_8BIT: {"momentum": 0.9, "weight_decay": 0.0, "max_unorm": 0.02, **_SMALL},
    Optimizer.RMSPROP_8BIT: {"alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, **_SMALL},
    Optimizer.SGD_8BIT: {"momentum": 0.9, "weight_decay": 0.0, **_SMALL},
    Optimizer.ADAMW_ADV: {
        **_BETAS, "eps": 1e-8, **_ADAM_LIKE, "use_bias_correction": True, "normed_momentum": False,
    },
    Optimizer.ADOPT_ADV: {"beta1": 0.9, "beta2": 0.9999, "eps": 1e-6, **_ADAM_LIKE},
    Optimizer.LION_ADV: {"beta1": 0.9, "beta2": 0.99, **_ADVANCED, "kappa_p": 1.0, "auto_kappa_p": False},
    Optimizer.SIGNSGD_ADV: {
        "momentum": 0.9, **_ADVANCED, "geometric_wd": False, "nesterov": False, "nesterov_coef": None,
        "normed_momentum": False, "snr_cond": False, "state_precision": "auto",
    },
    Optimizer.PRODIGY_ADV: {
        **_BETAS, "beta3": None, "eps": 1e-8, **_ADAM_LIKE, **_ADAPTING, "d_coef": 1.0, "safeguard_warmup": False,
        "slice_p": 11, "prodigy_steps": 0, "d_limiter": False,
    },
    Optimizer.MUON_ADV: {"beta1": 0.95, **_MUON_LIKE, "beta2_normuon": 0.95, "normuon_eps": 1e-8},
    Optimizer.ADAMUON_ADV: {
        "beta1": 0.95, "beta2": 0.95, "eps": 1e-8, **_MUON_LIKE, "use_atan2": False, "factored_2nd": False,
        "kappa_p": 1.0, "auto_projection": True,
    },
}  # fmt: skip
"""The parameters' defaults in each update rule; the order is that of the window."""

CLASS_NAMES: Mapping[tuple[Optimizer, str], str] = {
    (Optimizer.TIGER, "beta1"): "beta",
    (Optimizer.RMSPROP, "beta2"): "alpha",
    (Optimizer.RMSPROP_8BIT, "beta2"): "alpha",
    (Optimizer.ADAFACTOR, "beta1"): "beta1",
    (Optimizer.MUON_ADV, "beta1"): "beta1",
}
"""Arguments of a class that a field is handed to, where it has no ``betas``."""

IDLE: Mapping[tuple[Optimizer, str], tuple[Value, ...]] = {
    **{
        (kind, name): ()
        for kind in (Optimizer.SGD_8BIT, Optimizer.LARS_8BIT)
        for name in ("nesterov", "dampening")
    },
    **{(Optimizer.ADAGRAD_8BIT, name): (0,) for name in ("lr_decay", "initial_accumulator_value")},
    (Optimizer.RMSPROP_8BIT, "momentum"): (),
}
"""Arguments that a class takes and does not use, and the only values that it takes; empty for any. Imports of earlier
versions wrote them."""


@cache
def parameters_of(kind: Optimizer) -> tuple[OptimizerParameter, ...]:
    """The parameters of an update rule, in the order they are shown."""
    return tuple(_made(kind, name, default) for name, default in DEFAULTS[kind].items())


def _made(kind: Optimizer, name: str, default: Value) -> OptimizerParameter:
    own: dict[str, Any] | None = OTHERWISE.get((kind.value, name)) or MEANINGS.get(name)
    if own is None:
        plain = MEANINGS[name.removeprefix("adam_")]
        about = plain["about"]
        own = {**plain, "about": f"For the weights that ADAMW updates: {about[0].lower()}{about[1:]}"}
    return OptimizerParameter(name, default=default, field=name in FIELDS, **own)


def parameter_of(kind: Optimizer, name: str) -> OptimizerParameter | None:
    """The parameter with this name in ``optimizer.params``, if the update rule has it."""
    field = next((own for (one, own), theirs in CLASS_NAMES.items() if one is kind and theirs == name), name)
    found = (one for one in parameters_of(kind) if one.name in (name, field))
    return next(found, None)


def unknown_parameter(kind: Optimizer, name: str) -> tuple[str, str]:
    """Return the fault of a name that an update rule does not have, and what to do about it."""
    if (kind, name) in IDLE:
        return f"{name} has no effect with {kind}", "remove it"
    names = [one.name for one in parameters_of(kind)]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(names)
    return f"{kind} has no argument {name!r}", hint


def faults_of(config: OptimizerConfig) -> Iterator[tuple[str, str, str]]:
    """Parameters that the update rule does not have, and values it cannot use.

    Yields:
        place in the config, what is wrong, what to do.
    """
    kind = config.optimizer
    for name in FIELDS:
        value, parameter = getattr(config, name), parameter_of(kind, name)
        if value is None or (kind, name) in CLASS_NAMES or _is_idle(kind, name, value):
            continue
        if parameter is None:
            yield f"optimizer.{name}", f"{kind} has no {name}", "leave it empty"
        elif parameter.fault(value):
            yield f"optimizer.{name}", parameter.fault(value), "leave it empty for the default"
    for name, value in config.params.items():
        parameter = parameter_of(kind, name)
        if _is_idle(kind, name, value):
            continue
        if parameter is None:
            yield "optimizer.params", *unknown_parameter(kind, name)
        elif name in ("beta1", "beta2") and CLASS_NAMES.get((kind, name)) != name:
            yield "optimizer.params", f"{name} is a separate setting", f"set optimizer.{name}"
        elif parameter.fault(value):
            yield "optimizer.params", f"{name} {parameter.fault(value)}", "leave it out for the default"


def idle_in(config: OptimizerConfig) -> Iterator[tuple[str, str]]:
    """Arguments that the class takes and does not use: place in the config, and name."""
    kind = config.optimizer
    for name in FIELDS:
        if getattr(config, name) is not None and _is_idle(kind, name, getattr(config, name)):
            yield f"optimizer.{name}", name
    for name, value in config.params.items():
        if _is_idle(kind, name, value):
            yield "optimizer.params", name


def _is_idle(kind: Optimizer, name: str, value: Value) -> bool:
    taken = IDLE.get((kind, name))
    return taken is not None and (not taken or value in taken)
