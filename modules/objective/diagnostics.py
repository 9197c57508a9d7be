"""Detects from its metrics that a preference run is going wrong."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WINDOW = 100
SATURATED_ACCURACY = 0.95
NO_SIGNAL_AFTER = 300
STANDARD_ERRORS = 3.0
TIMES_LOUDER = 10


@dataclass(frozen=True)
class Finding:
    """One finding: ``kind`` is REWARD_HACKING, LOSSES_DIVERGE or NO_SIGNAL; ``message`` says what it is and
    what to do.
    """

    kind: str
    step: int
    message: str


@dataclass(frozen=True)
class _Point:
    """Averages of one optimizer step."""

    pairs: float
    chosen_reward: float
    accuracy: float
    raw_loss: float
    loss: float


class PreferenceDiagnostics:
    """Watches the averages of the last ``window`` optimizer steps.

    * REWARD_HACKING: accuracy has saturated while the chosen images score below the reference, if there is one.
    * LOSSES_DIVERGE: the raw loss rises while the total loss (with its supervised share) falls.
    * NO_SIGNAL: after 300 steps accuracy is still indistinguishable from 0.5, if there is a reference.

    A change counts only beyond three standard errors. Each finding is reported once, and again only after ten
    times as many windows, so that a long run does not fill its log.

    Args:
        window: number of optimizer steps considered, at least 10.
        reference: whether rewards compare with a reference.
        strength: the setting that holds the model to the reference, higher values more closely.
    """

    def __init__(
        self, window: int = WINDOW, reference: bool = True, strength: str = "rlhf_dpo_beta"
    ) -> None:
        if window < 10:
            raise ValueError(f"a window of {window} steps is too short to tell a trend; at least 10")
        self.window = window
        self.reference, self.strength = reference, strength
        self._points: deque[_Point] = deque(maxlen=window)
        self._steps = 0
        self._told: dict[str, int] = {}

    def update(self, step: int, averages: Mapping[str, float]) -> list[Finding]:
        """Add the averages of optimizer step ``step`` (see ``metrics.averages_of``). Returns new findings.

        Steps without pairs and steps with a value that is missing or not finite are left out.
        """
        names = ("pairs", "chosen_reward", "accuracy", "raw_loss", "loss")
        if not averages.get("pairs") or not all(
            math.isfinite(averages.get(name, math.nan)) for name in names
        ):
            return []
        self._points.append(_Point(*(float(averages[name]) for name in names)))
        self._steps += 1
        if len(self._points) < self.window:
            return []
        found = []
        for kind, check in (
            ("REWARD_HACKING", self._reward_hacking),
            ("LOSSES_DIVERGE", self._losses_diverge),
            ("NO_SIGNAL", self._no_signal),
        ):
            message = check()
            if message and self._is_new(kind):
                self._told[kind] = self._steps
                found.append(Finding(kind, step, message))
        return found

    def _is_new(self, kind: str) -> bool:
        told = self._told.get(kind)
        return told is None or self._steps - told >= TIMES_LOUDER * self.window

    def _accuracy(self) -> tuple[float, float]:
        """Share of correctly ranked pairs, and the number of pairs."""
        pairs = sum(point.pairs for point in self._points)
        return sum(point.accuracy * point.pairs for point in self._points) / pairs, pairs

    def _reward_hacking(self) -> str:
        if not self.reference:
            # the reward is minus an error, which is never above 0
            return ""
        accuracy, _ = self._accuracy()
        reward, error = _mean([point.chosen_reward for point in self._points])
        if accuracy < SATURATED_ACCURACY or reward + STANDARD_ERRORS * error >= 0:
            return ""
        return (
            f"accuracy is {accuracy:.2f} while the chosen reward is {reward:.3g}: the model ranks the pairs "
            "correctly but also gets worse at the chosen images. Use an earlier backup; then lower the "
            f"learning rate, raise rlhf_supervised_mix, or raise {self.strength}"
        )

    def _losses_diverge(self) -> str:
        raw, raw_error = self._change("raw_loss")
        total, total_error = self._change("loss")
        if raw <= STANDARD_ERRORS * raw_error or total >= -STANDARD_ERRORS * total_error:
            return ""
        return (
            f"over {self.window} steps the preference loss rose by {raw:.3g} while the total loss fell by "
            f"{-total:.3g}: the supervised share outweighs the preferences. Lower rlhf_supervised_mix"
        )

    def _no_signal(self) -> str:
        if not self.reference or self._steps < NO_SIGNAL_AFTER:
            # without a reference, the accuracy says which image is easier to denoise, whatever was learned
            return ""
        accuracy, pairs = self._accuracy()
        if abs(accuracy - 0.5) > STANDARD_ERRORS * 0.5 / math.sqrt(pairs):
            return ""
        return (
            f"after {self._steps} steps accuracy is still {accuracy:.2f}, no better than chance: nothing "
            "is being learned from these pairs. Check that chosen and rejected are not mixed up, raise "
            f"the learning rate, or lower {self.strength}"
        )

    def _change(self, name: str) -> tuple[float, float]:
        """Mean of the newer half minus mean of the older half of the window, and its standard error."""
        values = [float(getattr(point, name)) for point in self._points]
        half = len(values) // 2
        older, older_error = _mean(values[:half])
        newer, newer_error = _mean(values[half:])
        return newer - older, math.hypot(older_error, newer_error)

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        points = [[p.pairs, p.chosen_reward, p.accuracy, p.raw_loss, p.loss] for p in self._points]
        return {"points": points, "steps": self._steps, "told": dict(self._told)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            ValueError: the state is not one that ``state_dict`` writes.
        """
        try:
            points = [_Point(*(float(value) for value in point)) for point in state["points"]]
            steps = int(state["steps"])
            told = {str(kind): int(at) for kind, at in state["told"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the saved diagnostics are damaged: {error!r}") from error
        self._points = deque(points, maxlen=self.window)
        self._steps, self._told = steps, told


def _mean(values: list[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    mean = sum(values) / len(values)
    spread = sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)
    return mean, math.sqrt(spread / len(values))
