"""Weights & Biases. It uses its own login (``wandb login``), of which nothing is stored here."""

from __future__ import annotations

from modules.runner.events import step_of
from modules.runner.trackers.Tracker import Event, Tracker, metrics_of, package


class WandB(Tracker):
    """Sends metrics of steps and validations."""

    def __init__(self, project: str, name: str) -> None:
        # keep settings and code of this folder private
        self._run = package("wandb").init(project=project, name=name, save_code=False)
        self._status = 0

    def take(self, event: Event) -> None:
        if event["kind"] == "run_finished":
            # a run that was resumed has several ends, of which the last one counts
            self._status = int(event.get("status") == "failed")
        if numbers := metrics_of(event):
            self._run.log(numbers, step=step_of(event) or 0)

    def finish(self) -> None:
        self._run.finish(exit_code=self._status)
