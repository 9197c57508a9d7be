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


_NESTEROV_COEF = (
    "With nesterov: share of the average in a step; the rest is the current gradient. null means {}."
)
_SIGN_BETA1 = "Share of the average in an update; the rest is the current gradient."
_DIFFERENCES = "Decay of the moving average of squared differences between the gradient and its average."


def _m(kind: str, about: str, limits: Limits = NO_LIMITS, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "about": about, "limits": limits, **more}


FIELDS = ("beta1", "beta2", "eps", "weight_decay", "momentum")
"""Names that are fields of ``optimizer`` of their own."""

_COMMON: Mapping[str, dict[str, Any]] = {
    "beta1": _m("number", "Decay of the moving average of gradients.", _SHARE),
    "beta2": _m("number", "Decay of the moving average of squared gradients.", _SHARE),
    "beta3": _m(
        "number",
        "Decay of the averages from which the step size is estimated; null means the square root of beta 2.",
        _SHARE,
        optional=True,
    ),
    "eps": _m("number", "Added to the denominator to avoid division by zero.", Limits(ge=0, le=1)),
    "weight_decay": _m("number", "Pulls the weights towards zero.", Limits(ge=0, le=10)),
    "momentum": _m("number", "Share of the last step that is kept in the next one.", _SHARE),
    "dampening": _m("number", "Share of the new gradient that is left out of the momentum.", _FROM_0),
    "nesterov": _m("switch", "Look ahead along the momentum before the step."),
    "amsgrad": _m("switch", "Divide by the largest average of squared gradients so far."),
    "ams_bound": _m("switch", "Divide by the largest average of squared gradients so far."),
    "maximize": _m("switch", "Increase the loss instead of decreasing it. For experiments only."),
    "foreach": _m(
        "switch",
        "Update all weights in one call: faster, but needs more memory; null lets the library decide.",
        optional=True,
    ),
    "fused": _m(
        "switch", "Run the whole step in one kernel: faster; null lets the library decide.", optional=True
    ),
    "decoupled_weight_decay": _m("switch", "Decay weights separately from the gradient, as in ADAMW."),
    "weight_decouple": _m("switch", "Decay weights separately from the gradient, as in ADAMW."),
    "fixed_decay": _m("switch", "Do not multiply the weight decay by the learning rate."),
    "rectify": _m("switch", "Warm up based on the variance of the adaptive step size, as RAdam does."),
    "n_sma_threshold": _m(
        "whole",
        "With rectify: number of gradients the averages must cover before steps become adaptive.",
        Limits(ge=5),
    ),
    "degenerated_to_sgd": _m("switch", "With rectify: take plain SGD steps until the threshold is reached."),
    "bias_correction": _m("switch", "Correct the averages for starting at 0."),
    "min_8bit_size": _m(
        "whole", "Tensors with fewer elements than this keep their state in 32 bits.", _FROM_0
    ),
    "is_paged": _m("switch", "Move the state to main memory when the graphics card runs out of memory."),
    "max_unorm": _m(
        "number", "Maximum norm of an update, relative to the norm of the weights it changes.", _FROM_0
    ),
    "d0": _m("number", "Initial estimate of the step size.", _ABOVE_0),
    "d_coef": _m(
        "number", "Multiplies the estimated step size: 2 makes larger steps, 0.5 smaller ones.", _ABOVE_0
    ),
    "growth_rate": _m(
        "number", "Maximum factor by which the step size grows in one step. inf: no limit.", Limits(ge=1)
    ),
    "safeguard_warmup": _m("switch", "Keep a warm-up of the learning rate from inflating the step size."),
    "r": _m("number", "Exponent of the step number when steps are weighted in the average.", _FROM_0),
    "weight_lr_power": _m(
        "number", "Exponent of the learning rate when steps are weighted in the average.", _FROM_0
    ),
    "warmup_steps": _m(
        "whole", "Steps over which the optimizer's learning rate rises to its full value.", _FROM_0
    ),
    "decoupling_c": _m(
        "number",
        "Sets the length of the average independently of the momentum: a larger value makes it shorter. "
        "0: the original method. Usual: 6 to 200.",
        _FROM_0,
    ),
    "eps2": _m("number", "With scale_parameter: weights count as at least this large.", _FROM_0),
    "clip_threshold": _m(
        "number",
        "Maximum root mean square of an update before the learning rate is applied. Larger updates are scaled down.",
        _ABOVE_0,
    ),
    "decay_rate": _m(
        "number", "Exponent p in the decay of the average of squared gradients, 1 - step^p.", Limits(lt=0)
    ),
    "scale_parameter": _m(
        "switch", "Multiply steps by the size of the weights. Set it to false for adapters."
    ),
    "relative_step": _m("switch", "Take the learning rate from the step number instead of the config."),
    "warmup_init": _m(
        "switch", "With relative_step: the learning rate starts as 1e-6 times the step number."
    ),
    "lr_decay": _m("number", "Shrinks the learning rate with the number of steps.", _FROM_0),
    "initial_accumulator_value": _m("number", "Initial value of the sum of squared gradients.", _FROM_0),
    "initial_accumulator": _m("number", "Initial value of both averages.", _FROM_0),
    "alpha": _m("number", "Decay of the moving average of squared gradients.", _SHARE),
    "centered": _m("switch", "Divide by the variance of the gradients instead of their mean square."),
    "trust_coefficient": _m("number", "Size of a step relative to the norm of the weights.", _ABOVE_0),
    "k": _m("whole", "Number of times the gradient and its average are projected onto each other.", _FROM_0),
    "xi": _m("number", "Keeps the projections from dividing by zero.", _FROM_0),
    "grad_averaging": _m("switch", "Weight the new gradient by 1 - beta 1 in the average."),
    "max_grad_norm": _m("number", "Clip all gradients together to this norm. 0: no limit.", _FROM_0),
    "adam": _m("switch", "Take steps as in ADAM, not scaled by the size of the weights."),
    "pre_norm": _m("switch", "Divide the gradients by their norm first."),
    "eps1": _m("number", "Added to squared gradients.", _FROM_0),
    "t_alpha_beta3": _m(
        "whole",
        "Steps until the slow average has its full weight and length; null means from the first step.",
        _FROM_1,
        optional=True,
    ),
    "t_alpha": _m(
        "whole",
        "Steps until the slow average has its full weight; null means from the first step.",
        _FROM_1,
        optional=True,
    ),
    "t_beta3": _m(
        "whole",
        "Steps until the slow average has its full length; null means from the first step.",
        _FROM_1,
        optional=True,
    ),
    "muon_hidden_layers": _m(
        "text",
        "Parts of layer names, separated by commas. MUON updates the matrices of layers whose names contain "
        "one of them.",
    ),
    "muon_adam_regex": _m("switch", "Read muon_hidden_layers as one regular expression."),
    "muon_adam_lr": _m("number", "Learning rate of the weights that ADAMW updates.", _FROM_0),
    "ns_steps": _m(
        "whole", "Number of Newton-Schulz iterations that make an update orthogonal.", Limits(ge=1, le=100)
    ),
    "ns_eps": _m(
        "number", "Keeps the Newton-Schulz iterations from dividing by zero.", _FROM_0, optional=True
    ),
    "ns_coeffs": _m(
        "text",
        "Coefficients of the Newton-Schulz iterations.",
        choices=("original", "quintic", "polar_express", "polar_express_safer"),
    ),
    "ns_method": _m(
        "text", "How updates are made orthogonal.", choices=("newton_schulz", "gram_newton_schulz")
    ),
    "use_adjusted_lr": _m(
        "switch", "Scale steps by the shape of the matrix, so that the learning rates of ADAMW can be used."
    ),
    "adamw_lr": _m("number", "Learning rate of the class; muon_adam_lr overrides it.", _FROM_0),
    "adamw_wd": _m("number", "Weight decay of the weights that ADAMW updates.", _FROM_0),
    "adamw_eps": _m("number", "Epsilon for the weights that ADAMW updates.", _FROM_0),
}
_SCHEDULE_FREE_PRODIGY: Mapping[str, dict[str, Any]] = {
    "weight_decay_by_lr": _m("switch", "Multiply the weight decay by the learning rate."),
    "d_limiter": _m("switch", "Let the step size grow by at most a fifth in each step."),
    "prodigy_steps": _m(
        "whole", "After this many steps, the step size stays fixed. 0: it always adapts.", _FROM_0
    ),
    "schedulefree_c": _m(
        "number",
        "Sets the length of the average: a larger value makes it shorter. 0: the original method. Usual: 6 to 12 for "
        "short noisy runs, 50 to 200 for long runs.",
        _FROM_0,
    ),
    "split_groups": _m("switch", "Estimate a separate step size for each part of the model."),
    "split_groups_mean": _m(
        "switch", "With split_groups: use the harmonic mean of the step sizes for all parts."
    ),
    "factored": _m(
        "switch", "Store only a row and a column of averages for the squared gradients of a large matrix."
    ),
    "factored_fp32": _m("switch", "With factored: keep the row and the column in 32 bits."),
    "use_bias_correction": _m("switch", "Correct the averages for starting at 0."),
    "use_stableadamw": _m("switch", "Scale down updates whose root mean square is above 1."),
    "use_schedulefree": _m("switch", "Average the weights instead of using a learning rate schedule."),
    "use_speed": _m(
        "switch", "Estimate the step size from the progress in the direction of travel. Experimental."
    ),
    "use_cautious": _m(
        "switch",
        "Leave out the parts of a step whose sign contradicts the current gradient. Needs use_schedulefree. "
        "Experimental.",
    ),
    "use_grams": _m(
        "switch", "Keep the sizes in a step, but take the signs from the current gradient. Experimental."
    ),
    "use_adopt": _m("switch", "Divide each gradient by an average of earlier gradients only. Experimental."),
    "use_orthograd": _m(
        "switch", "Remove the part of the gradient that is parallel to the weights. Experimental."
    ),
    "use_focus": _m(
        "switch", "Pull steps towards the average of the weights, to reduce noise. Experimental."
    ),
}
_ADVANCED: Mapping[str, dict[str, Any]] = {
    "fisher_wd": _m("switch", "Scale the weight decay in the same way as the gradients."),
    "cautious_wd": _m("switch", "Decay only where the update shrinks the weight as well."),
    "geometric_wd": _m(
        "switch",
        "Decay all weights of a tensor by the same amount, not in proportion to each weight. The total strength stays "
        "the same.",
    ),
    "use_atan2": _m("switch", "Use the arctangent instead of a division, so that no epsilon is needed."),
    "orthogonal_gradient": _m(
        "text",
        "Remove the part of the gradient that is parallel to the weights. flattened: for each tensor as a whole. "
        "iterative: for each row and column.",
        choices=_ORTHOGONAL,
    ),
    "nesterov_coef": _m("number", _NESTEROV_COEF.format("beta 1"), _FROM_0, optional=True),
    "normed_momentum": _m("switch", "Normalize the gradient before it is averaged."),
    "centered_wd": _m("number", "Pulls the weights towards their initial values.", _FROM_0),
    "centered_wd_mode": _m(
        "text",
        "With centered_wd: number format in which the initial weights are kept.",
        choices=("full", "float8", "int8", "int4"),
    ),
    "state_precision": _m(
        "text",
        "Number format of the averages. auto: that of the weights. factored: compressed, which saves memory.",
        choices=_PRECISIONS,
    ),
    "factored_2nd": _m(
        "switch", "Store only a row and a column of averages for the squared gradients of a matrix."
    ),
    "nnmf_factor": _m("switch", "Older way to set state_precision to factored."),
    "vector_reshape": _m("switch", "With a factored state: factor vectors as well."),
    "compiled_optimizer": _m("switch", "Compile the step: faster after a slow start."),
    "kappa_p": _m(
        "number",
        "Norm by which steps are normalized: 1 keeps only the signs, 2 also the proportions.",
        Limits(ge=1, le=2),
    ),
    "auto_kappa_p": _m("switch", "Choose kappa_p by the shape of the weights."),
    "auto_projection": _m("switch", "Choose the norm of updates by the shape of the weights."),
    "snr_cond": _m("switch", "With normed_momentum: shrink steps where the gradients are mostly noise."),
    "slice_p": _m(
        "whole",
        "Use only every n-th weight to estimate the step size: a larger value needs less memory.",
        _FROM_1,
    ),
    "rms_rescaling": _m(
        "switch", "Scale updates to the size they have with ADAMW, so that its learning rates can be used."
    ),
    "normuon_variant": _m("switch", "Divide updates by the average size of each row."),
    "beta2_normuon": _m("number", "With normuon_variant: decay of the average size of each row.", _SHARE),
    "normuon_eps": _m("number", "With normuon_variant: avoids division by zero.", _FROM_0),
    "accelerated_ns": _m(
        "switch", "Recompute the coefficients of the Newton-Schulz iterations in each step."
    ),
    "cns_a_bound": _m(
        "number",
        "With accelerated_ns: lower bound of the singular values at the start; null means that it is computed.",
        _ABOVE_0,
        optional=True,
    ),
    "approx_mars": _m("switch", "Use the difference from the last gradient to reduce noise."),
    "mars_gamma": _m("number", "With approx_mars: strength of the correction.", _FROM_0),
}
MEANINGS: Mapping[str, dict[str, Any]] = {**_COMMON, **_SCHEDULE_FREE_PRODIGY, **_ADVANCED}
"""By name; a name with ``adam_`` before it is the same for what MUON leaves to ADAMW."""

OTHERWISE: Mapping[tuple[str, str], dict[str, Any]] = {
    **{
        (name, "alpha"): _m("number", "Weight of the slow average relative to the fast one.", _FROM_0)
        for name in ("ADEMAMIX", "ADEMAMIX_8BIT")
    },
    **{
        (name, "beta1"): _m("number", _SIGN_BETA1, _SHARE)
        for name in ("LION", "LION_8BIT", "DADAPT_LION", "LION_ADV")
    },
    **{
        (name, "beta2"): _m("number", "Decay of the moving average of gradients.", _SHARE)
        for name in ("LION", "LION_8BIT", "DADAPT_LION", "LION_ADV")
    },
    **{(name, "beta2"): _m("number", _DIFFERENCES, _SHARE) for name in ("ADABELIEF", "AIDA")},
    ("DADAPT_ADAN", "beta2"): _m(
        "number", "Decay of the moving average of differences between successive gradients.", _SHARE
    ),
    ("SIGNSGD_ADV", "nesterov_coef"): _m("number", _NESTEROV_COEF.format("momentum"), _FROM_0, optional=True),
    ("LION_ADV", "nnmf_factor"): _m("switch", "Store the average compressed, which saves memory."),
    ("ADAFACTOR", "beta1"): _m(
        "number",
        "Decay of the moving average of updates; null means no average, which saves memory.",
        _SHARE,
        optional=True,
    ),
    ("CAME", "eps2"): _m("number", "Added to the squared differences of updates.", _FROM_0),
    ("PRODIGY_PLUS_SCHEDULE_FREE", "eps"): _m("number", "Avoids division by zero.", Limits(gt=0, le=1)),
    ("ADAMUON_ADV", "kappa_p"): _m(
        "number",
        "Without auto_projection: norm by which updates are normalized. 1 keeps only the signs, 2 also the "
        "proportions.",
        Limits(ge=1, le=2),
    ),
    ("SCHEDULE_FREE_SGD", "eps"): _m("number", "Has no effect with this update rule.", Limits(ge=0, le=1)),
}
"""Names that mean something else for one update rule."""
