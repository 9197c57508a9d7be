"""Dynamic loss scaling, so that float16 gradients do not vanish."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

GROWTH, BACKOFF, GROW_AFTER, START, LARGEST = 2.0, 0.5, 2000, 65536.0, 2.0**24


class LossScaler:
    """A dynamic scale: halved when a gradient overflows, doubled after many steps without overflow.

    Every process sees the same reduced gradients and so keeps the same scale.

    Args:
        enabled: whether to scale; otherwise the scale is always 1.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.scale = START if enabled else 1.0
        self._good = 0

    def unscale(self, gradients: Sequence[torch.Tensor]) -> None:
        """Divide gradients by the scale, in place."""
        if self.scale != 1.0 and gradients:
            torch._foreach_mul_(list(gradients), 1.0 / self.scale)

    def update(self, finite: bool) -> None:
        """Update the scale after each optimizer step, done or skipped."""
        if not self.enabled:
            return
        if not finite:
            self.scale, self._good = max(self.scale * BACKOFF, 1.0), 0
            return
        self._good += 1
        if self._good >= GROW_AFTER:
            self.scale, self._good = min(self.scale * GROWTH, LARGEST), 0

    @property
    def searching(self) -> bool:
        """True if a smaller scale could still fix an overflow."""
        return self.enabled and self.scale > 1.0

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale, "good": self._good}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        scale, good = float(state["scale"]), int(state["good"])
        if not math.isfinite(scale) or scale < 1.0 or good < 0:
            raise ValueError(f"the saved loss scale is damaged: {dict(state)}")
        if self.enabled:
            self.scale, self._good = scale, good
