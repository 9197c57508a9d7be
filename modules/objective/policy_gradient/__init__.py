"""Losses of the online modes: what a policy is taught by the rewards of its own images.

One mode a file, found by scanning this package. Every function is pure: log-probabilities or errors of
predictions in, a loss and its closed-form coefficients out.
"""

from modules.objective.policy_gradient.base import (
    OnlineMode,
    PolicyOut,
    RatioCheck,
    StepOptions,
    StepTerms,
    check_ratio,
    combine_metrics,
    get_online_mode,
    paradigm_of,
    transition_kl,
)

__all__ = [
    "OnlineMode",
    "PolicyOut",
    "RatioCheck",
    "StepOptions",
    "StepTerms",
    "check_ratio",
    "combine_metrics",
    "get_online_mode",
    "paradigm_of",
    "transition_kl",
]
