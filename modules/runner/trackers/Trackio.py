"""trackio: curves on this computer, or in a Hugging Face space."""

from __future__ import annotations

from modules.runner.events import step_of
from modules.runner.trackers.Tracker import Event, Tracker, metrics_of, package


class Trackio(Tracker):
    """Sends metrics of steps and validations."""

    def __init__(self, project: str, name: str) -> None:
        self._trackio = package("trackio")
        self._trackio.init(project=project, name=name)

    def take(self, event: Event) -> None:
        if numbers := metrics_of(event):
            self._trackio.log(numbers, step=step_of(event) or 0)

    def finish(self) -> None:
        self._trackio.finish()
