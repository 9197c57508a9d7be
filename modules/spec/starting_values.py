"""Initial values for beta and learning rate, by the prediction of a model; ``docs/methods.md`` explains them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from modules.spec.FamilySpec import Prediction


@dataclass(frozen=True)
class StartingValues:
    """Values for pairs on disk.

    Args:
        beta, supervised_mix: of DPO.
        rate: learning rate of a LoRA whose alpha equals its rank.
    """

    beta: float
    supervised_mix: float
    rate: float = 5e-5


STARTING_VALUES: Mapping[Prediction, StartingValues] = MappingProxyType(
    {
        "epsilon": StartingValues(2500.0, 0.0),
        "v_prediction": StartingValues(2500.0, 0.0),
        "flow": StartingValues(200.0, 0.25),
    }
)
