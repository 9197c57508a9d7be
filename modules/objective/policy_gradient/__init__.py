"""Losses of the online modes: what a policy learns from the rewards of its own images. One file per mode, found by
scanning this package. Every function is pure: log-probabilities or errors of predictions in, a loss and its
closed-form coefficients out.
"""

from modules.objective.policy_gradient.base import (
    ImageOptions,
    ImageTerms,
    PolicyOut,
    RatioCheck,
    StepOptions,
    StepTerms,
    check_ratio,
    get_online_loss,
    transition_kl,
)

__all__ = [
    "ImageOptions",
    "ImageTerms",
    "PolicyOut",
    "RatioCheck",
    "StepOptions",
    "StepTerms",
    "check_ratio",
    "get_online_loss",
    "transition_kl",
]
