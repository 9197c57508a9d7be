"""The run that the window watches: starting it, sending commands, reading its events. No Tk here."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.runner.devices import run_using, waiting_for
from modules.runner.events import SAMPLING
from modules.runner.known_runs import one_start_at_a_time
from modules.runner.launcher import TrainerProcess, attach, launch
from modules.runner.outcome import Outcome
from modules.runner.RunDirectory import RunDirectory
from modules.runner.status import RunStatus, StatusFollower
from modules.ui.state.RunHistory import RunHistory
from modules.ui.state.runs.Trial import Trial
from modules.ui.texts import run as words
from modules.util.display import duration
from modules.util.errors import UserError
from modules.util.jsonio import read_json

POLL_BYTES = 1 << 15
POLL_SECONDS = 0.010
LIVE = ("starting", "running", "paused")


@dataclass(frozen=True)
class Progress:
    """Progress of a run: shares from 0 to 1, with texts."""

    run: float = 0.0
    epoch: float = 0.0
    text: str = ""


class RunControl:
    """Follows one run directory at a time.

    Args:
        command: replaces the trainer's command line, for tests.
    """

    def __init__(self, command: Callable[[RunDirectory], Sequence[str]] | None = None) -> None:
        self.run: RunDirectory | None = None
        self.is_mirror = False
        """True if the run is on another computer."""
        self.connected = False
        """True if that computer sends its events now."""
        self.history = RunHistory()
        self.outcome: Outcome | None = None
        self._command = command
        self._follower: StatusFollower | None = None
        self._trainer: TrainerProcess | None = None
        self._ending: _Ending | None = None
        self._was_live = False
        self._epochs = 0
        self.has_prompts = False
        """True if the run's settings have sample prompts."""

    # -- choosing a run --------------------------------------------------------------------------------------

    def start(self, folder: str | os.PathLike[str], config: dict[str, Any]) -> str:
        """Start training in a folder and follow it, unless its device is in use by another trainer.

        Returns:
            What the start is waiting for; empty if training was started.

        Raises:
            UserError: a trainer is running there, or cannot be started.
        """
        run = RunDirectory(folder)
        device = str(config.get("train_device") or "auto")
        with one_start_at_a_time():
            other = run_using(device, besides=run)
            if other is not None:
                return waiting_for(other, device)
            trainer = launch(run, config, self._command(run) if self._command else None)
        self.follow(folder)
        self._trainer = trainer
        self._was_live = True
        return ""

    def trial(self, config: dict[str, Any], told: Callable[[str], None]) -> Trial:
        """Measure the time of a step with the same trainer."""
        return Trial(config, told, self._command)

    def follow(self, folder: str | os.PathLike[str]) -> None:
        """Watch the run in a folder, whether running or ended."""
        self.run = RunDirectory(folder)
        self.is_mirror, self.connected = self.run.is_mirror, False
        self.history = RunHistory()
        self.outcome = None
        self._follower = StatusFollower(self.run)
        self._ending = None
        settings = _settings_of(self.run)
        self._epochs, self.has_prompts = _epochs_of(settings), _has_prompts(settings)
        self._trainer = attach(self.run)
        self._was_live = self._trainer is not None

    # -- watching --------------------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Read new events for at most a few milliseconds. Return whether there were any."""
        if self._follower is None:
            return False
        before = self.state
        end = time.perf_counter() + POLL_SECONDS
        heard = False
        while True:
            events = self._follower.poll(POLL_BYTES)
            self.history.take(events)
            heard = heard or bool(events)
            if self._follower.reader.at_end or time.perf_counter() > end:
                break
        self._look_after()
        return heard or before != self.state

    @property
    def is_behind(self) -> bool:
        """True if there is more to read than one ``poll`` handles, as in a long run that was just opened."""
        return self._follower is not None and not self._follower.reader.at_end

    def _look_after(self) -> None:
        if self._trainer is not None and self._ending is None and not self._trainer.process.alive():
            self._ending = _Ending(self._trainer)
        if self._ending is None or self._ending.is_alive() or self._follower is None:
            return
        outcome, self._ending = self._ending.outcome, None
        if outcome is None:  # another trainer has started there meanwhile, or this one has not quite ended
            self._trainer = attach(self._follower.run) or self._trainer
            return
        self._trainer, self.outcome = None, outcome
        self.history.take(
            self._follower.poll(POLL_BYTES)
        )  # last messages, perhaps written just before it ended

    @property
    def status(self) -> RunStatus:
        return self._follower.status if self._follower is not None else RunStatus("")

    @property
    def state(self) -> str:
        """One of ``status.STATES``. If the events do not tell how a run ended, its process does. A run on another
        computer that sends its events is in the state that they tell.
        """
        state, outcome = self.status.state, self.outcome
        if self.connected and self._follower is not None and state in ("remote", "new"):
            said = self._follower.said
            return said if said != "new" else "running" if self.status.sequence else "starting"
        if state == "died" and outcome is not None:
            return outcome.category if outcome.ok else "failed"
        return state

    def fault(self) -> tuple[str, str] | None:
        """The reason why the run failed, and what to do about it (may be empty); ``None`` if it did not fail."""
        if self.state not in ("failed", "died"):
            return None
        error, outcome = self.status.error, self.outcome
        if error is not None:
            return str(error.get("message", "")), str(error.get("hint") or "")
        return (outcome.message, outcome.hint) if outcome is not None and not outcome.ok else None

    @property
    def is_live(self) -> bool:
        """True if a trainer is running or starting."""
        return self.state in LIVE

    @property
    def is_live_here(self) -> bool:
        """The same, and on this computer."""
        return self.is_live and not self.is_mirror

    def take_outcome(self) -> Outcome | None:
        """Return how the run ended, once, if it ended while it was watched."""
        if self.outcome is None or not self._was_live:
            return None
        self._was_live = False
        return self.outcome

    def progress(self) -> Progress:
        """The values of the progress bars and the text next to them."""
        status, state = self.status, self.state
        if state == "new":
            return Progress()
        if state == "starting":
            return Progress(text=words.STARTING_UP)
        step, phase = status.step, self._phase()
        if phase is not None:
            done, total = _pair(phase.get("done"), phase.get("total"))
            share = done / total if total else 0.0
            name = str(phase.get("name", ""))
            name = name[:1].upper() + name[1:]
            text = words.PHASE.format(name=name, done=done, total=total) if total else name
            return Progress(_run_share(step), share, text)
        if step is None:
            return Progress(text=words.STATES.get(state, state))
        return Progress(_run_share(step), self._epoch_share(step), self._step_text(step))

    def _phase(self) -> dict[str, Any] | None:
        """The current phase, if it is not an optimizer step."""
        status = self.status
        step, phase = status.step, status.phase
        if phase is None or self.state not in LIVE or (step is not None and step["seq"] > phase["seq"]):
            return None
        return phase

    @property
    def makes_samples(self) -> bool:
        """True if a sample is being made now."""
        phase = self._phase()
        return phase is not None and str(phase.get("name", "")).startswith(SAMPLING)

    def _epoch_share(self, step: dict[str, Any]) -> float:
        place = _progress_of(step)
        epoch, done = _pair(place.get("epoch"), place.get("epoch_step"))
        before: float = place.get("global_step", 0) - done
        if epoch and before > 0:
            return min(1.0, done * epoch / before)
        whole = self.history.total_steps / self._epochs if self._epochs else 0.0
        return min(1.0, done / whole) if whole else 0.0

    def _step_text(self, step: dict[str, Any]) -> str:
        place, metrics = _progress_of(step), step.get("metrics") or {}
        parts = [] if self.state == "running" else [words.STATES.get(self.state, self.state)]
        epoch = place.get("epoch", 0) + 1
        if self._epochs:
            parts.append(words.EPOCH_OF.format(epoch=min(epoch, self._epochs), epochs=self._epochs))
        else:
            parts.append(words.EPOCH.format(epoch=epoch))
        total = step.get("total_steps", "?")
        parts.append(words.STEP_OF.format(step=place.get("global_step", 0), total=total))
        loss = metrics.get("loss/train_step")
        if isinstance(loss, (int, float)):
            parts.append(words.LOSS.format(value=loss))
        accuracy = metrics.get("dpo/accuracy")
        if isinstance(accuracy, (int, float)):
            parts.append(words.ACCURACY.format(value=accuracy))
        for tag, value in metrics.items():
            if "memory" in tag and isinstance(value, (int, float)):
                parts.append(words.MEMORY.format(value=value))
                break
        eta = step.get("eta")
        if isinstance(eta, (int, float)) and self.state == "running":
            parts.append(words.LEFT.format(time=duration(eta)))
        return "  \u00b7  ".join(parts)

    # -- orders ----------------------------------------------------------------------------------------------

    def post(self, kind: str) -> str:
        """Send a command (one of ``commands.COMMANDS``).

        Raises:
            UserError: no run is active.
        """
        if self.run is None:
            raise RuntimeError("no run is watched")
        return self.run.post(kind)

    def end_now(self) -> None:
        """Kill a trainer that does not stop when asked."""
        if self._trainer is not None:
            self._trainer.end()

    def file(self, name: str) -> Path:
        """A file reported by the run, whatever folder its path is relative to."""
        if self.run is None:
            raise RuntimeError("no run is watched")
        path = Path(name)
        return path if path.is_absolute() else self.run.path / path


class _Ending(threading.Thread):
    """Finds out how a trainer ended. This reads all its events, so it runs off the Tk thread."""

    def __init__(self, trainer: TrainerProcess) -> None:
        super().__init__(daemon=True, name="run-ending")
        self.outcome: Outcome | None = None
        self._trainer = trainer
        self.start()

    def run(self) -> None:
        self.outcome = self._trainer.poll()


def _settings_of(run: RunDirectory) -> dict[str, Any]:
    """The settings the run was started with; empty if they cannot be read."""
    try:
        data = read_json(run.config_path)
    except UserError:
        return {}
    return data if isinstance(data, dict) else {}


def _epochs_of(settings: Mapping[str, Any]) -> int:
    """The number of epochs to train; 0 if the settings limit the steps instead."""
    epochs = 0 if settings.get("max_steps") else settings.get("epochs")
    return epochs if isinstance(epochs, int) else 0


def _has_prompts(settings: Mapping[str, Any]) -> bool:
    samples = settings.get("samples")
    if isinstance(samples, list):
        return any(isinstance(one, dict) and one.get("enabled", True) for one in samples)
    name = settings.get("sample_definition_file_name")
    return isinstance(name, str) and bool(name) and Path(name).is_file()


def _progress_of(step: dict[str, Any]) -> dict[str, Any]:
    found = step.get("progress")
    return found if isinstance(found, dict) else {}


def _run_share(step: dict[str, Any] | None) -> float:
    if step is None:
        return 0.0
    done, total = _pair(_progress_of(step).get("global_step"), step.get("total_steps"))
    return min(1.0, done / total) if total else 0.0


def _pair(done: object, total: object) -> tuple[int, int]:
    return (done if isinstance(done, int) else 0), (total if isinstance(total, int) else 0)
