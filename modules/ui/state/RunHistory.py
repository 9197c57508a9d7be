"""The reports of a run, in a form that can be drawn: curves, samples, messages. No Tk here."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from modules.runner.events import step_of
from modules.ui.texts import run as words
from modules.ui.texts import votes

MAX_POINTS = 2000
MAX_MESSAGES = 400


@dataclass
class Series:
    """One curve. When it gets long, neighbouring points are averaged, which bounds memory and preserves the
    shape.
    """

    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    newest: float | None = None
    _share: int = 1
    _held: list[tuple[float, float]] = field(default_factory=list)

    def add(self, step: float, value: float) -> None:
        """Add a point. Values that are not finite are skipped."""
        if not math.isfinite(value):
            return
        if self.steps and step <= self.steps[-1]:
            self._rewind(step)  # the run was resumed from an earlier backup
        self.newest = value
        self._held.append((step, value))
        if len(self._held) < self._share:
            return
        self.steps.append(self._held[-1][0])
        self.values.append(sum(v for _, v in self._held) / len(self._held))
        self._held.clear()
        if len(self.steps) >= MAX_POINTS:
            self._halve()

    def _rewind(self, step: float) -> None:
        keep = bisect_left(self.steps, step)
        del self.steps[keep:], self.values[keep:]
        self._held.clear()

    def _halve(self) -> None:
        half = len(self.values) // 2 * 2
        self.values = [(a + b) / 2 for a, b in zip(self.values[:half:2], self.values[1:half:2], strict=True)]
        self.steps = self.steps[1:half:2]
        self._share *= 2


@dataclass(frozen=True)
class SampleImage:
    """A sample made by the trainer: its file, prompt and step."""

    path: str
    prompt: str
    number: int
    step: int


@dataclass(frozen=True)
class Message:
    """A line of the run's diary."""

    when: float
    kind: str
    text: str


class RunHistory:
    """Collects events and holds what pages draw."""

    def __init__(self) -> None:
        self.series: dict[str, Series] = {}
        self.samples: list[SampleImage] = []
        self.messages: list[Message] = []
        self.total_steps = 0

    def take(self, events: Iterable[dict[str, Any]]) -> None:
        """Add events in order."""
        for event in events:
            handler = getattr(self, f"_take_{event['kind']}", None)
            if handler is not None:
                handler(event)

    def _take_run_started(self, event: dict[str, Any]) -> None:
        self.total_steps = _whole(event.get("total_steps"))
        said = words.RESUMED if event.get("resumed_from") else words.STARTED
        self._say(event, said.format(device=event.get("device", words.THIS_COMPUTER)))

    def _take_step(self, event: dict[str, Any]) -> None:
        self.total_steps = _whole(event.get("total_steps")) or self.total_steps
        self._add_metrics(event)

    def _take_validation(self, event: dict[str, Any]) -> None:
        self._add_metrics(event)
        metrics = event.get("metrics")
        if isinstance(metrics, dict):
            shown = ", ".join(
                f"{tag.rpartition('/')[2]} {_number(value):.4g}" for tag, value in list(metrics.items())[:6]
            )
            self._say(event, words.VALIDATED.format(step=_step(event), metrics=shown))

    def _add_metrics(self, event: dict[str, Any]) -> None:
        metrics = event.get("metrics")
        if isinstance(metrics, dict):
            for tag, value in metrics.items():
                self.series.setdefault(tag, Series()).add(_step(event), _number(value))

    def _take_sample(self, event: dict[str, Any]) -> None:
        path = event.get("path")
        if isinstance(path, str):
            made = SampleImage(path, str(event.get("prompt", "")), _whole(event.get("number")), _step(event))
            self.samples = [s for s in self.samples if s.path != path]
            self.samples.append(made)

    def _take_backup(self, event: dict[str, Any]) -> None:
        self._say(event, words.BACKED_UP.format(step=_step(event), path=event.get("path")))

    def _take_save(self, event: dict[str, Any]) -> None:
        self._say(event, words.SAVED.format(step=_step(event), path=event.get("path")))

    def _take_warning(self, event: dict[str, Any]) -> None:
        self._say(event, str(event.get("message", "")))

    def _take_votes_wanted(self, event: dict[str, Any]) -> None:
        self._say(event, votes.WANTED.format(prompt=event.get("prompt", "")))

    def _take_votes_counted(self, event: dict[str, Any]) -> None:
        levels = event.get("levels")
        told = levels if isinstance(levels, list) else []
        liked = sum(isinstance(one, int) and one > 0 for one in told)
        by_others = votes.COUNTED_BY.get(str(event.get("by")))
        self._say(event, by_others or votes.COUNTED.format(liked=liked, images=len(told)))

    def _take_error(self, event: dict[str, Any]) -> None:
        hint = event.get("hint")
        self._say(event, f"{event.get('message', '')}{f' - {hint}' if hint else ''}")

    def _take_command(self, event: dict[str, Any]) -> None:
        more = f": {event['message']}" if event.get("message") else ""
        self._say(event, f"{event.get('command')}: {event.get('state')}{more}")

    def _take_run_finished(self, event: dict[str, Any]) -> None:
        self._say(event, words.ENDED_AS.format(status=event.get("status")))

    def _say(self, event: dict[str, Any], text: str) -> None:
        when = event.get("t")
        self.messages.append(Message(_number(when), event["kind"], text))
        del self.messages[:-MAX_MESSAGES]


def _number(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    spelt = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
    return spelt.get(value, math.nan) if isinstance(value, str) else math.nan


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _step(event: dict[str, Any]) -> int:
    return step_of(event) or 0
