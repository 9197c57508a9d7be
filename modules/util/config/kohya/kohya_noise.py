"""Noise, timesteps and losses of a kohya config."""

from __future__ import annotations

from typing import Any

from modules.util.config.faults import show
from modules.util.config.foreign.Fields import Fields
from modules.util.config.foreign.Notes import Notes
from modules.util.enum.ModelType import ModelType
from modules.util.errors import UnsupportedError

Data = dict[str, Any]

_LOSSES = {"l2": "mse", "l1": "mae", "huber": "huber", "smooth_l1": "huber"}
_STRENGTHS = ("mse", "mae", "huber")
_TIMESTEPS = 1000
_DRAWS_BY_WEIGHTING_ALONE = ("StableDiffusion3Pipeline",)
"""Models whose script has no timestep_sampling, and a shift with another name."""
_COSMAP = "cosmap"
_WEIGHTED = "sigma_scaled"
"""The type of prediction with which models other than SD3 weight the loss."""
_WEIGHTS_THE_LOSS = (_COSMAP, "sigma_sqrt")
"""Schemes of weighting that do not say how timesteps are drawn."""
_LOST = {
    "multires_noise_iterations": "not supported: plain noise is used",
    "multires_noise_discount": "not supported: plain noise is used",
    "adaptive_noise_scale": "not supported: the offset has one strength",
    "noise_offset_random_strength": "not supported: the offset has one strength",
    "ip_noise_gamma_random_strength": "not supported: the noise has one strength",
    "scale_v_pred_loss_like_noise_pred": "not supported",
    "v_pred_like_loss": "not supported",
}


def import_noise(fields: Fields, family: ModelType, parts: Data, notes: Notes) -> Data:
    """Our settings of noise, timesteps and losses.

    Raises:
        UnsupportedError: the loss or the timestep sampling is not supported.
    """
    made: Data = {
        "offset_noise_weight": fields.number("noise_offset", 0.0),
        "perturbation_noise_weight": fields.number("ip_noise_gamma", 0.0),
        "rescale_noise_scheduler_to_zero_terminal_snr": fields.flag("zero_terminal_snr"),
        "force_v_prediction": fields.flag("v_parameterization"),
        "min_noising_strength": (fields.number("min_timestep", 0.0) or 0.0) / _TIMESTEPS,
        "max_noising_strength": (fields.number("max_timestep", _TIMESTEPS) or _TIMESTEPS) / _TIMESTEPS,
        **_loss(fields, notes),
    }
    gamma = fields.number("min_snr_gamma", 0.0)
    if gamma:
        made |= {"loss_weight_fn": "MIN_SNR_GAMMA", "loss_weight_strength": gamma}
    if fields.flag("debiased_estimation_loss"):
        made["loss_weight_fn"] = "DEBIASED_ESTIMATION"
    for name, why in _LOST.items():
        fields.lost(name, why)
    if family.spec.flow_matching:
        made |= _levels(fields, family, notes)
    guidance = fields.number("guidance_scale", 3.5)
    if family.spec.embeds_guidance:
        parts[family.denoiser]["guidance_scale"] = guidance
    return made


def _loss(fields: Fields, notes: Notes) -> Data:
    kind = fields.text("loss_type", "l2")
    if kind not in _LOSSES:
        raise UnsupportedError(f"the loss {show(kind)} is not supported", "loss_type", "nearest: l2")
    made: Data = {f"{name}_strength": float(_LOSSES[kind] == name) for name in _STRENGTHS}
    delta, schedule = fields.number("huber_c", 0.1), fields.text("huber_schedule", "snr")
    scale = fields.number("huber_scale", 1.0)
    if made["huber_strength"]:
        made["huber_delta"] = delta
        why = "kohya uses the pseudo-Huber loss, this program the plain one; compare the learning rates"
        notes.add("loss_type", kind, why)
        if schedule != "constant":
            notes.add(
                "huber_schedule", schedule, "not supported: one delta for all timesteps", ours="constant"
            )
        if scale != 1:
            notes.add("huber_scale", scale, "not supported", ours=1)
    return made


def _levels(fields: Fields, family: ModelType, notes: Notes) -> Data:
    """Return how noise levels are drawn for flow-matching families."""
    kind = fields.text("timestep_sampling", "sigma")
    scale, shift = fields.number("sigmoid_scale", 1.0) or 0.0, fields.number("discrete_flow_shift", 3.0)
    own_shift = fields.number("training_shift", 1.0)
    if family.spec.pipeline_class in _DRAWS_BY_WEIGHTING_ALONE:
        kind, shift = "sigma", own_shift
    weighting = fields.text("weighting_scheme", "none")
    mean, spread = fields.number("logit_mean", 0.0), fields.number("logit_std", 1.0) or 0.0
    mode = fields.number("mode_scale", 1.29)
    prediction = fields.text("model_prediction_type", _WEIGHTED)
    if prediction != "raw":
        notes.add(
            "model_prediction_type", prediction, "raw instead: the loss is that of the velocity", ours="raw"
        )
    normal = {"timestep_distribution": "LOGIT_NORMAL", "noising_weight": scale - 1.0, "noising_bias": 0.0}
    kinds: dict[str, Data] = {
        "uniform": {"timestep_distribution": "UNIFORM", "timestep_shift": 1.0},
        "sigmoid": {**normal, "timestep_shift": 1.0},
        "shift": {**normal, "timestep_shift": shift},
        "flux_shift": {**normal, "timestep_shift": 1.0, "dynamic_timestep_shifting": True},
    }
    drawn: dict[str, Data] = {
        "none": {"timestep_distribution": "UNIFORM"},
        "uniform": {"timestep_distribution": "UNIFORM"},
        # a number drawn there is a place in the list of timesteps, which begins with pure noise
        "logit_normal": {
            "timestep_distribution": "LOGIT_NORMAL", "noising_weight": spread - 1.0, "noising_bias": -(mean or 0.0),
        },
        "mode": {"timestep_distribution": "HEAVY_TAIL", "noising_weight": mode},
        _COSMAP: {"timestep_distribution": "COS_MAP"},
    }  # fmt: skip
    if kind in kinds:
        if weighting in _WEIGHTS_THE_LOSS and prediction == _WEIGHTED:
            notes.add("weighting_scheme", weighting, "not supported with timestep_sampling: the loss has no weights")
        return kinds[kind]
    if kind != "sigma":
        raise UnsupportedError(
            f"timesteps drawn by {show(kind)} are not supported",
            "timestep_sampling",
            f"nearest: {', '.join(kinds)}",
        )
    if weighting not in drawn:
        raise UnsupportedError(
            f"the weighting {show(weighting)} is not supported",
            "weighting_scheme",
            f"nearest: {', '.join(drawn)}",
        )
    if weighting == _COSMAP:
        weights = prediction == _WEIGHTED or family.spec.pipeline_class in _DRAWS_BY_WEIGHTING_ALONE
        theirs = "weights the loss, the same on average without a shift" if weights else "has no effect with raw"
        notes.add("weighting_scheme", weighting, f"draws timesteps here; in kohya, it {theirs}", ours="COS_MAP")
    return {**drawn[weighting], "timestep_shift": shift}
