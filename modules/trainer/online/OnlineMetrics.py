"""Metrics of an optimizer step of online training, combined over its micro-batches and all processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from modules.objective.policy_gradient import PolicyOut
from modules.trainer.distributed import Processes


class OnlineMetrics:
    """Collects the metrics of micro-batches. Nothing is copied off the device until requested."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._outs: list[PolicyOut] = []
        self._facts: dict[str, float] = {}

    def clear(self, facts: Mapping[str, float]) -> None:
        """Begin a step. ``facts`` are logged with it unchanged."""
        self._outs.clear()
        self._facts = dict(facts)

    def add(self, out: PolicyOut) -> None:
        """Add a micro-batch, without its graph."""
        self._outs.append(PolicyOut(out.loss.detach(), {}, dict(out.shares), dict(out.maxima)))

    def totals(self) -> dict[str, float]:
        """Combine shares and maxima over all processes. All of them must call this."""
        own = _combined((out.shares, out.maxima) for out in self._outs)
        sums, maxima = _combined(self._processes.gather(own))
        return sums | {name: value for name, value in maxima.items() if value > -math.inf}

    def tags(self) -> dict[str, float]:
        """The totals by logged name, including ``loss/train_step``."""
        totals = self.totals()
        return {
            "loss/train_step": totals.get("loss", math.nan),
            **{f"rl/{name}": value for name, value in totals.items()},
            **self._facts,
        }


def _combined(
    parts: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> tuple[dict[str, float], dict[str, float]]:
    """Sums of the first numbers of each part, and maxima of the second."""
    sums: dict[str, float] = {}
    maxima: dict[str, float] = {}
    for shares, largest in parts:
        for name, value in shares.items():
            sums[name] = sums.get(name, 0.0) + float(value)
        for name, value in largest.items():
            maxima[name] = max(maxima.get(name, -math.inf), float(value))
    return sums, maxima
