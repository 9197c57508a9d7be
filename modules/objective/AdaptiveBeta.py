"""Beta that adapts to the margin (beta-DPO)."""

from __future__ import annotations

import math
from collections.abc import Mapping

FAST_MOMENTUM = 0.9
SLOW_MOMENTUM = 0.99
SENSITIVITY = 0.6
RANGE = 4.0


class AdaptiveBeta:
    """Moves beta inside [beta0 / 4, 4 beta0] by how far the recent margin is from its long-run level.

    ``beta = beta0 * clip(1 + 0.6 (M - M0), 1/4, 4)`` with M the margin of the recent optimizer steps and M0
    that of the many before, both running means in units of ``beta0 * margin``. Pairs that separate more
    widely than usual raise beta (a shorter step), pairs that separate less lower it. Every step uses the beta
    known before it, so that its loss does not depend on the division into micro-batches. Source: Wu et al.
    2024 (arXiv 2407.08639), batch-level form, with the batch margin smoothed because image batches are small.

    Args:
        beta0: the configured beta, finite and >= 0.
    """

    def __init__(self, beta0: float) -> None:
        if not math.isfinite(beta0) or beta0 < 0:
            raise ValueError(f"beta0 must be finite and >= 0, not {beta0}")
        self.beta0 = beta0
        self._fast = 0.0
        self._slow = 0.0
        self._updates = 0

    @property
    def beta(self) -> float:
        """Beta for the next optimizer step; beta0 before the first update."""
        if self._updates == 0:
            return self.beta0
        fast = self._fast / (1.0 - FAST_MOMENTUM**self._updates)
        slow = self._slow / (1.0 - SLOW_MOMENTUM**self._updates)
        factor = 1.0 + SENSITIVITY * (fast - slow)
        return self.beta0 * min(max(factor, 1.0 / RANGE), RANGE)

    def update(self, margin: float) -> float:
        """Add the mean margin (beta-free) of an optimizer step over all its pairs. Returns the next beta.

        A non-finite margin leaves the state unchanged.
        """
        level = self.beta0 * margin
        if math.isfinite(level):
            self._fast = FAST_MOMENTUM * self._fast + (1.0 - FAST_MOMENTUM) * level
            self._slow = SLOW_MOMENTUM * self._slow + (1.0 - SLOW_MOMENTUM) * level
            self._updates += 1
        return self.beta

    def state_dict(self) -> dict[str, float]:
        return {"beta0": self.beta0, "fast": self._fast, "slow": self._slow, "updates": float(self._updates)}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore a saved state. The configured beta0 is unchanged.

        Raises:
            KeyError: a number is missing. ValueError: one is NaN or infinite, or the count of updates is
                negative.
        """
        values = {name: float(state[name]) for name in ("fast", "slow", "updates")}
        if not all(math.isfinite(value) for value in values.values()) or values["updates"] < 0:
            raise ValueError(f"the saved adaptive beta is damaged: {dict(state)}")
        self._fast, self._slow, self._updates = values["fast"], values["slow"], int(values["updates"])
