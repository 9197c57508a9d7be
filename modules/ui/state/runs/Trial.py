"""A few optimizer steps in a temporary folder that measure the time of a step. No Tk here."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from modules.runner.devices import run_using
from modules.runner.known_runs import one_start_at_a_time
from modules.runner.launcher import TrainerProcess, launch
from modules.runner.pace import Pace, makes_images, pace_of
from modules.runner.RunDirectory import RunDirectory
from modules.runner.status import StatusFollower
from modules.ui.texts import forecast as words
from modules.util.errors import UserError

STEPS = 3
POLL_SECONDS = 0.1


class Trial:
    """One measurement.

    Args:
        config: the config to measure, as plain data.
        told: called with a short progress text, in the thread of ``run``.
        command: replaces the trainer's command line.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        told: Callable[[str], None],
        command: Callable[[RunDirectory], Sequence[str]] | None = None,
    ) -> None:
        self.config = dict(config)
        self._told, self._command = told, command
        self._cancelled = threading.Event()

    def run(self) -> Pace | None:
        """Measure, which takes as long as loading and three steps. Return ``None`` if cancelled.

        Raises:
            UserError: the device is in use, or training fails.
        """
        with tempfile.TemporaryDirectory(prefix="tastemaker-trial-", ignore_cleanup_errors=True) as folder:
            run = RunDirectory(Path(folder) / "run")
            trainer = self._start(run, Path(folder))
            try:
                outcome = self._follow(run, trainer)
            finally:
                if trainer.poll() is None:
                    trainer.end()
            if self._cancelled.is_set():
                return None
            if outcome is not None and not outcome.ok:
                raise UserError(outcome.message, hint=outcome.hint or None)
            found = pace_of(run, makes_images(self.config))
        if found is None:
            raise UserError(words.TRIAL_TOO_SHORT)
        return found

    def _start(self, run: RunDirectory, folder: Path) -> TrainerProcess:
        config = trial_config(self.config, folder)
        device = str(config.get("train_device") or "auto")
        with one_start_at_a_time():
            other = run_using(device, besides=run)
            if other is not None:
                raise UserError(words.BUSY.format(folder=other.path))
            return launch(run, config, self._command(run) if self._command else None)

    def _follow(self, run: RunDirectory, trainer: TrainerProcess) -> Any:
        follower, said = StatusFollower(run), ""
        while True:
            outcome = trainer.poll()
            if outcome is not None or self._cancelled.is_set():
                return outcome
            follower.poll()
            phase = follower.status.phase or {}
            name = str(phase.get("name") or words.LOADING)
            if name != said:
                said = name
                self._told(name)
            time.sleep(POLL_SECONDS)

    def cancel(self) -> None:
        """Cancel the trial; ``run`` returns soon."""
        self._cancelled.set()


def trial_config(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The settings of a trial: few steps, and nothing that is made between steps or kept.

    In online training, the trial takes one epoch, because images are made before the first step.
    """
    length: dict[str, Any] = {"epochs": 1} if makes_images(config) else {"max_steps": STEPS}
    return {
        **config, **length,
        "continue_last_backup": False, "workspace_dir": str(folder / "run"),
        "output_model_destination": str(folder / "out.safetensors"), "tensorboard": False,
        "sample_after_unit": "NEVER", "validation": False, "rlhf_dpo_validation": False,
        "backup_after_unit": "NEVER", "save_every_unit": "NEVER", "samples": [],
    }  # fmt: skip
