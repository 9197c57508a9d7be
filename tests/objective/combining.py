"""Metrics of an optimizer step, added up in the plainest way."""

from __future__ import annotations

import math
from collections.abc import Iterable

from modules.objective.policy_gradient import PolicyOut


def combine_metrics(outs: Iterable[PolicyOut]) -> dict[str, float]:
    """Metrics of an optimizer step from those of its micro-batches (of one rank, or of all)."""
    totals: dict[str, float] = {}
    for out in outs:
        for name, value in out.shares.items():
            totals[name] = totals.get(name, 0.0) + float(value)
        for name, value in out.maxima.items():
            if value > -math.inf:
                totals[name] = max(totals.get(name, -math.inf), float(value))
    return totals
