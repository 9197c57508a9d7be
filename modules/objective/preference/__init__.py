"""Preference losses: one pure function per file, found by scanning this package."""

from modules.objective.preference.base import (
    LossOut,
    ObjectiveOptions,
    PairScores,
    PreferenceLoss,
    get_preference_loss,
    preference_loss,
)

__all__ = [
    "LossOut",
    "ObjectiveOptions",
    "PairScores",
    "PreferenceLoss",
    "get_preference_loss",
    "preference_loss",
]
