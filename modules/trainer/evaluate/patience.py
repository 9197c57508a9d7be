"""Early stopping: when validation has stopped improving."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modules.util.enum.choices import DPOPatienceMetric
from modules.util.enum.DPOPatienceMode import DPOPatienceMode

DECIMALS = 5


@dataclass(frozen=True)
class Verdict:
    """The result of one validation.

    Args:
        stalled: names of the metrics that did not improve on their best so far.
        counter: consecutive validations without progress.
        stop: whether patience has run out.
        undefined: names of the metrics that were NaN or infinite (they are among ``stalled``).
    """

    stalled: tuple[str, ...]
    counter: int
    stop: bool
    undefined: tuple[str, ...] = ()


class Patience:
    """Counts validations without progress.

    A metric stalls if, rounded to five decimals, it does not improve on its best so far, or is NaN. With
    EITHER, the counter increases if any metric stalls; with BOTH, only if all do. Otherwise it is reset to 0.

    Args:
        metrics: the watched metrics.
        mode: EITHER or BOTH.
        value: the counter at which training stops.
    """

    def __init__(self, metrics: Sequence[DPOPatienceMetric], mode: DPOPatienceMode, value: int) -> None:
        self.metrics, self.mode, self.value = tuple(metrics), mode, value
        self.counter = 0
        self.bests = {m.value: -math.inf if m.higher_is_better else math.inf for m in self.metrics}

    def update(self, values: Mapping[str, float]) -> Verdict:
        """Add the values of a validation.

        Args:
            values: by metric name (``val_accuracy``).
        """
        stalled, undefined = [], []
        for metric in self.metrics:
            value = round(values[metric.value], DECIMALS) if math.isfinite(values[metric.value]) else math.nan
            best = self.bests[metric.value]
            if value > best if metric.higher_is_better else value < best:
                self.bests[metric.value] = value
                continue
            stalled.append(metric.value)
            if math.isnan(value):
                undefined.append(metric.value)
        needed = len(self.metrics) if self.mode is DPOPatienceMode.BOTH else 1
        self.counter = self.counter + 1 if len(stalled) >= needed else 0
        return Verdict(tuple(stalled), self.counter, self.counter >= self.value, tuple(undefined))

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON values; a metric without a value yet is left out."""
        bests = {name: best for name, best in self.bests.items() if math.isfinite(best)}
        return {"counter": self.counter, "bests": bests}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state. Metrics that were not watched before start from zero, and so does the counter if
        a metric was watched that is not watched now.
        """
        self.counter = int(state["counter"]) if state["bests"].keys() <= self.bests.keys() else 0
        for name in self.bests:
            if name in state["bests"]:
                self.bests[name] = float(state["bests"][name])
