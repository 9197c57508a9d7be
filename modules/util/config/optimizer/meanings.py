"""The meaning of each parameter of the update rules, and the values it may have; defaults are in ``tables``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modules.util.config.optimizer.OptimizerParameter import NO_LIMITS
from modules.util.config.settings import Limits

_SHARE = Limits(ge=0, lt=1)
_ABOVE_0 = Limits(gt=0)
_FROM_0 = Limits(ge=0)
_FROM_1 = Limits(ge=1)
_PRECISIONS = ("auto", "fp32", "fp16", "factored")
_ORTHOGONAL = ("disabled", "flattened", "iterative")


def _m(kind: str, about: str, limits: Limits = NO_LIMITS, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "about": about, "limits": limits, **more}


FIELDS = ("beta1", "beta2", "eps", "weight_decay", "momentum")
"""Names that are fields of ``optimizer`` of their own."""

_COMMON: Mapping[str, dict[str, Any]] = {
    "beta1": _m("number", "Decay of the moving average of gradients.", _SHARE),
    "beta2": _m("number", "Decay of the moving average of squared gradients.", _SHARE),
    "beta3": _m(
        "number",
        "Decay of the averages from which the step size is found; null means the square root of beta 2.",
        _SHARE,
        optional=True,
    ),
    "eps": _m("number", "Added to the denominator to avoid division by zero.", Limits(ge=0, le=1)),
    "weight_decay": _m("number", "Pulls the weights towards zero.", Limits(ge=0, le=10)),
    "momentum": _m("number", "Share of the last step that is kept in the next one.", _SHARE),
    "dampening": _m("number", "Share of the new gradient that the momentum leaves out.", _FROM_0),
    "nesterov": _m("switch", "Look ahead along the momentum before the step."),
    "amsgrad": _m("switch", "Divide by the largest average of squared gradients so far."),
    "ams_bound": _m("switch", "Divide by the largest average of squared gradients so far."),
    "maximize": _m("switch", "Increase the loss instead of decreasing it. For experiments only."),
    "foreach": _m(
        "switch",
        "Step all weights in one call: faster, with more memory; null lets the class decide.",
        optional=True,
    ),
    "fused": _m(
        "switch", "One kernel for the whole step: faster; null lets the class decide.", optional=True
    ),
    "decoupled_weight_decay": _m("switch", "Decay weights separately from the gradient, as in ADAMW."),
    "weight_decouple": _m("switch", "Decay weights separately from the gradient, as in ADAMW."),
    "fixed_decay": _m("switch", "Do not multiply the weight decay by the learning rate."),
    "rectify": _m("switch", "Warm up by the variance of the step size, as RAdam does."),
    "n_sma_threshold": _m(
        "whole", "With rectify: number of averaged steps after which steps become adaptive.", Limits(ge=5)
    ),
    "degenerated_to_sgd": _m("switch", "With rectify: plain steps until there are enough averages."),
    "bias_correction": _m("switch", "Correct the averages for starting at 0."),
    "min_8bit_size": _m(
        "whole", "Weights with fewer numbers than this keep their state in 32 bits.", _FROM_0
    ),
    "is_paged": _m("switch", "Move the state to main memory when the graphics card runs out of memory."),
    "max_unorm": _m("number", "Largest norm of an update in proportion to the norm of its weights.", _FROM_0),
    "d0": _m("number", "First guess of the step size.", _ABOVE_0),
    "d_coef": _m(
        "number", "Factor on the step size that is found: 2 makes larger steps, 0.5 smaller ones.", _ABOVE_0
    ),
    "growth_rate": _m("number", "Largest growth of the step size in one step. inf: no limit.", Limits(ge=1)),
    "safeguard_warmup": _m("switch", "Keep a warm-up of the learning rate from inflating the step size."),
    "r": _m("number", "Power of the step number in the weights of the average.", _FROM_0),
    "weight_lr_power": _m("number", "Power of the learning rate in the weights of the average.", _FROM_0),
    "warmup_steps": _m(
        "whole", "Steps over which the optimizer's learning rate rises to its full value.", _FROM_0
    ),
    "decoupling_c": _m(
        "number",
        "Length of the average, independent of the momentum; 0 is the plain method, 6 to 200 is usual.",
        _FROM_0,
    ),
    "eps2": _m("number", "Smallest size of weights by which steps are scaled.", _FROM_0),
    "clip_threshold": _m(
        "number", "Largest root mean square of an update before the learning rate.", _ABOVE_0
    ),
    "decay_rate": _m("number", "Power of the step number in the memory of squared gradients.", Limits(lt=0)),
    "scale_parameter": _m(
        "switch", "Multiply steps by the size of the weights. Set it to false for adapters."
    ),
    "relative_step": _m("switch", "Take the learning rate from the step number instead of the config."),
    "warmup_init": _m("switch", "With relative_step: begin with 1e-6 times the step number."),
    "lr_decay": _m("number", "Shrinks the learning rate with the number of steps.", _FROM_0),
    "initial_accumulator_value": _m("number", "Start of the sum of squared gradients.", _FROM_0),
    "initial_accumulator": _m("number", "Start of both averages.", _FROM_0),
    "alpha": _m("number", "Decay of the moving average of squared gradients.", _SHARE),
    "centered": _m("switch", "Divide by the variance of the gradients instead of their mean square."),
    "trust_coefficient": _m("number", "Step in proportion to the size of the weights.", _ABOVE_0),
    "k": _m("whole", "Number of projections of the gradient on its average.", _FROM_0),
    "xi": _m("number", "Keeps the projections from dividing by zero.", _FROM_0),
    "grad_averaging": _m("switch", "Give the new gradient the share that beta 1 leaves."),
    "max_grad_norm": _m("number", "Clip all gradients together to this norm. 0: no limit.", _FROM_0),
    "adam": _m("switch", "Do not scale by the size of the weights, as in ADAM."),
    "pre_norm": _m("switch", "Divide the gradients by their norm first."),
    "eps1": _m("number", "Added to squared gradients.", _FROM_0),
    "t_alpha_beta3": _m(
        "whole",
        "Steps over which the slow average gains its weight; null means immediately.",
        _FROM_1,
        optional=True,
    ),
    "t_alpha": _m(
        "whole",
        "Steps until the slow average has its full weight; null means immediately.",
        _FROM_1,
        optional=True,
    ),
    "t_beta3": _m(
        "whole",
        "Steps until the slow average has its full length; null means immediately.",
        _FROM_1,
        optional=True,
    ),
    "muon_hidden_layers": _m(
        "text", "Parts of layer names, with commas. MUON updates the matrices of these layers."
    ),
    "muon_adam_regex": _m("switch", "Read muon_hidden_layers as one regular expression."),
    "muon_adam_lr": _m("number", "Learning rate of everything that is left to ADAMW.", _FROM_0),
    "ns_steps": _m("whole", "Iterations that make an update orthogonal.", Limits(ge=1, le=100)),
    "ns_eps": _m("number", "Keeps the iterations from dividing by zero.", _FROM_0, optional=True),
    "ns_coeffs": _m(
        "text",
        "Coefficients of the iterations.",
        choices=("original", "quintic", "polar_express", "polar_express_safer"),
    ),
    "ns_method": _m(
        "text", "How updates are made orthogonal.", choices=("newton_schulz", "gram_newton_schulz")
    ),
    "use_adjusted_lr": _m(
        "switch", "Scale steps by the shape of the matrix, so that a learning rate for ADAMW fits."
    ),
    "adamw_lr": _m("number", "Learning rate of the class; muon_adam_lr overrides it.", _FROM_0),
    "adamw_wd": _m("number", "Weight decay of everything that is left to ADAMW.", _FROM_0),
    "adamw_eps": _m("number", "Epsilon of everything that is left to ADAMW.", _FROM_0),
}
_SCHEDULE_FREE_PRODIGY: Mapping[str, dict[str, Any]] = {
    "weight_decay_by_lr": _m("switch", "Multiply the weight decay by the learning rate."),
    "d_limiter": _m("switch", "Let the step size grow by at most a fifth in each step."),
    "prodigy_steps": _m("whole", "Step after which the step size no longer changes; 0 means never.", _FROM_0),
    "schedulefree_c": _m(
        "number",
        "Length of the average: 6 to 12 for short noisy runs, 50 to 200 for long ones; 0 is the plain method.",
        _FROM_0,
    ),
    "split_groups": _m("switch", "Find a step size for each part of the model."),
    "split_groups_mean": _m(
        "switch", "With split_groups: use the harmonic mean of the step sizes for all parts."
    ),
    "factored": _m("switch", "Keep squared gradients of large matrices as one row and one column."),
    "factored_fp32": _m("switch", "With factored: keep them in 32 bits."),
    "use_bias_correction": _m("switch", "Correct the averages for starting at 0."),
    "use_stableadamw": _m("switch", "Scale large updates down by their root mean square."),
    "use_schedulefree": _m("switch", "Train an average of the weights instead of needing a schedule."),
    "use_speed": _m("switch", "Find the step size from progress in the direction of travel. Experimental."),
    "use_cautious": _m(
        "switch", "Leave out parts of a step that point against the current gradient. Experimental."
    ),
    "use_grams": _m("switch", "Take signs from the gradient and sizes from its average. Experimental."),
    "use_adopt": _m("switch", "Divide only by the average of earlier steps. Experimental."),
    "use_orthograd": _m("switch", "Leave out the part of the gradient along the weights. Experimental."),
    "use_focus": _m("switch", "Pull steps towards the average of the weights, against noise. Experimental."),
}
_ADVANCED: Mapping[str, dict[str, Any]] = {
    "fisher_wd": _m("switch", "Scale the weight decay as the gradients are scaled."),
    "cautious_wd": _m("switch", "Decay only where the update shrinks the weight as well."),
    "geometric_wd": _m("switch", "Decay by the geometric mean of weight and gradient."),
    "use_atan2": _m("switch", "Use the arctangent instead of a division, which needs no epsilon."),
    "orthogonal_gradient": _m(
        "text", "Leave out the part of the gradient along the weights.", choices=_ORTHOGONAL
    ),
    "nesterov_coef": _m("number", "Strength of the look-ahead; null means beta 1.", _FROM_0, optional=True),
    "normed_momentum": _m("switch", "Normalize the gradient before it is averaged."),
    "centered_wd": _m("number", "Pulls the weights towards their initial values.", _FROM_0),
    "centered_wd_mode": _m(
        "text",
        "With centered_wd: how the first weights are kept.",
        choices=("full", "float8", "int8", "int4"),
    ),
    "state_precision": _m(
        "text", "Number format of the averages; auto is that of the weights.", choices=_PRECISIONS
    ),
    "factored_2nd": _m("switch", "Keep squared gradients of matrices as one row and one column."),
    "nnmf_factor": _m("switch", "Older name of the state precision factored."),
    "vector_reshape": _m("switch", "With a factored state: factor vectors as well."),
    "compiled_optimizer": _m("switch", "Compile the step: faster after a slow start."),
    "kappa_p": _m(
        "number", "Norm the steps are measured in: 1 takes signs, 2 whole gradients.", Limits(ge=1, le=2)
    ),
    "auto_kappa_p": _m("switch", "Choose kappa_p by the shape of the weights."),
    "auto_projection": _m("switch", "Choose the norm of updates by the shape of the weights."),
    "snr_cond": _m("switch", "With normed_momentum: shrink steps where the gradients are mostly noise."),
    "slice_p": _m("whole", "Look at every n-th weight to find the step size: less memory.", _FROM_1),
    "rms_rescaling": _m("switch", "Scale updates to their size with ADAMW, so that its learning rates fit."),
    "normuon_variant": _m("switch", "Divide updates by the average size of each row."),
    "beta2_normuon": _m("number", "With normuon_variant: decay of that average.", _SHARE),
    "normuon_eps": _m("number", "With normuon_variant: avoids division by zero.", _FROM_0),
    "accelerated_ns": _m("switch", "Find the coefficients of the iterations again in each step."),
    "cns_a_bound": _m(
        "number",
        "With accelerated_ns: smallest singular value at the start; null means that it is found.",
        _ABOVE_0,
        optional=True,
    ),
    "approx_mars": _m("switch", "Reduce noise by the difference from the last gradient."),
    "mars_gamma": _m("number", "With approx_mars: strength.", _FROM_0),
}
MEANINGS: Mapping[str, dict[str, Any]] = {**_COMMON, **_SCHEDULE_FREE_PRODIGY, **_ADVANCED}
"""By name; a name with ``adam_`` before it is the same for what MUON leaves to ADAMW."""

OTHERWISE: Mapping[tuple[str, str], dict[str, Any]] = {
    (name, "alpha"): _m("number", "Weight of the slow average next to the fast one.", _FROM_0)
    for name in ("ADEMAMIX", "ADEMAMIX_8BIT")
} | {
    ("ADAFACTOR", "beta1"): _m(
        "number", "Memory of updates; null keeps none, which saves memory.", _SHARE, optional=True
    ),
    ("CAME", "eps2"): _m("number", "Added to the squared differences of updates.", _FROM_0),
    ("PRODIGY_PLUS_SCHEDULE_FREE", "eps"): _m("number", "Avoids division by zero.", Limits(gt=0, le=1)),
    ("ADAMUON_ADV", "kappa_p"): _m(
        "number",
        "Without auto_projection: norm of updates, 1 takes signs, 2 whole updates.",
        Limits(ge=1, le=2),
    ),
    ("SCHEDULE_FREE_SGD", "eps"): _m(
        "number", "Accepted by the class, which does not use it.", Limits(ge=0, le=1)
    ),
}
"""Names that mean something else for one update rule."""
