"""A preference or an online run killed at any of its changes of files, and resumed: the same weights."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from modules.runner.RunDirectory import RunDirectory
from modules.trainer.callbacks import Callback
from modules.trainer.resume.leftovers import clear_leftovers
from modules.util.config.load import load_config
from modules.util.files.OpenFolder import observe
from modules.util.TrainProgress import TrainProgress
from scripts import train
from tests.faults.cases import Outcome, in_child, rests
from tests.guard import Guard
from tests.trainer.builders import run_here, same_weights, write_config
from tests.trainer.online.builders import write_online

SETTINGS = {"backup_after": 2, "backup_after_unit": "STEP", "epochs": 2, "rlhf_dpo_validation": True,
            "rlhf_dpo_validation_percentage": 30.0, "rolling_backup": True, "rolling_backup_count": 2}  # fmt: skip
EVERY = 2
"""Steps from one backup to the next."""


def write_preference(folder: Path) -> Path:
    """The config of a preference run with validation."""
    return write_config(folder, **SETTINGS)


def write_grpo(folder: Path) -> Path:
    """The config of an online run: rollouts, rewards and steps."""
    return write_online(folder, backup_after=2, backup_after_unit="STEP", rolling_backup=True, epochs=3)


def _to_self(*numbers: signal.Signals) -> Callable[[], None]:
    def send() -> None:
        for number in numbers:
            os.kill(os.getpid(), number)

    return send


def _stop_for_a_while() -> None:
    subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


SIGNALS: dict[str, Callable[[], None]] = {
    "SIGTERM": _to_self(signal.SIGTERM),
    "SIGINT": _to_self(signal.SIGINT),
    "SIGINT twice": _to_self(signal.SIGINT, signal.SIGINT),
    "SIGHUP": _to_self(signal.SIGHUP),
    "SIGSTOP and SIGCONT": _stop_for_a_while,
}
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Before a run has begun nothing catches them: they end the process, and there is nothing to lose."""


def counted_by(lines: list[str]) -> int:
    """How many changes of files a run made that ended by itself."""
    return next((int(line.split()[2]) for line in lines if line.startswith("status")), 0)


class _Telling(Callback):
    """Says which steps were done, and from which a run goes on."""

    def __init__(self, tell: object) -> None:
        self._tell = tell

    def step(
        self, progress: TrainProgress, metrics: Mapping[str, float], total: int, eta: float | None
    ) -> None:
        self._tell(f"step {progress.global_step} {time.monotonic()}")  # type: ignore[operator]

    def started(self, facts: Mapping[str, object]) -> None:
        self._tell(f"from {facts['progress']['global_step']}")  # type: ignore[operator,index]


@dataclass
class TrainingRuns:
    """Cases of one run in a scratch folder.

    Args:
        write: writes its config into a folder.
        name: for messages.

    Attributes:
        changes: how many there are in the run when nothing stops it.
        lost_steps, lost_seconds: of each kill, what was done and had to be done again.
    """

    base: Path
    write: Callable[[Path], Path] = write_preference
    name: str = "training"
    changes: int = 0
    lost_steps: list[int] = field(default_factory=list)
    lost_seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        whole = self.write(self.base / "whole")
        counted = 0

        def count(kind: str, path: str, finished: bool) -> None:
            nonlocal counted
            counted += finished

        observe(count)
        try:
            run_here(whole)
        finally:
            observe(None)
        self.changes = counted

    def killed(self, number: int, done: bool, warm: bool) -> Outcome:
        """SIGKILL before or after a change; with a warm cache what the whole run encoded already exists."""
        label, outcome = (
            f"{self.name}{' warm' if warm else ''} kill {number}{'+' if done else '-'}",
            Outcome(),
        )
        folder, guard = self.base / "case", Guard(self.base / "person")
        shutil.rmtree(folder, ignore_errors=True)
        config = self.write(folder)
        cache = self.base / "whole" / "cache"
        if warm and cache.is_dir():
            shutil.copytree(cache, folder / "cache")
        counted = 0

        def die(kind: str, path: str, finished: bool) -> None:
            nonlocal counted
            counted += finished is done
            if counted == number and finished is done:
                os.kill(os.getpid(), signal.SIGKILL)

        def work(tell: object) -> None:
            observe(die)
            run_here(config, "continue_last_backup=true", callback=_Telling(tell))

        status, lines, complaint = in_child(work)
        outcome.reached = status == -signal.SIGKILL
        if status is None:
            outcome.hangs.append(label)
        elif status not in (0, -signal.SIGKILL):
            outcome.tracebacks.append(f"{label}: {complaint}")
        steps = [(int(line.split()[1]), float(line.split()[2])) for line in lines if line.startswith("step")]
        outcome.acknowledged = len(steps)
        self._resume(config, label, steps, outcome)
        try:
            guard.check()
        except AssertionError as error:
            outcome.guards.append(f"{label}: {error}")
        shutil.rmtree(guard.folder)
        return outcome

    def signalled(self, number: int, how: str) -> Outcome:
        """A signal at a change of files, taken by ``scripts/train.py``; then the run is resumed.

        It ends by itself: finished, stopped with a backup, or by the signal while nothing is caught yet.
        """
        label, outcome = f"{self.name} {how} {number}", Outcome()
        folder, guard = self.base / "case", Guard(self.base / "person")
        shutil.rmtree(folder, ignore_errors=True)
        config = self.write(folder)
        counted = 0

        def meet(kind: str, path: str, finished: bool) -> None:
            nonlocal counted
            counted += finished
            if counted == number and finished:
                SIGNALS[how]()

        def work(tell: Callable[[str], None]) -> None:
            with (folder / "said.txt").open("w") as said:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
            observe(meet)
            status = train.main(["--config-path", str(config), "--set", "continue_last_backup=true"])
            tell(f"status {status} {counted}")

        status, lines, complaint = in_child(work)
        said = (folder / "said.txt").read_text()
        ended = [line.split()[1] for line in lines if line.startswith("status")]
        outcome.reached = counted_by(lines) >= number or status != 0
        if status is None:
            outcome.hangs.append(label)
        elif "Traceback" in said or (not (ended and ended[0] in ("0", "130")) and -status not in ENDING):
            outcome.tracebacks.append(f"{label}: status {status}, {ended}, {complaint} {said[-600:]}")
        run = RunDirectory(load_config(config).workspace_dir)
        done = [
            event["progress"]["global_step"]
            for event in map(
                json.loads, run.events_path.read_text().splitlines() if run.events_path.exists() else ()
            )
            if event["kind"] == "step"
        ]
        outcome.acknowledged = len(done)
        self._resume(config, label, [(step, 0.0) for step in done], outcome)
        try:
            guard.check()
        except AssertionError as error:
            outcome.guards.append(f"{label}: {error}")
        shutil.rmtree(guard.folder)
        return outcome

    def _resume(self, config: Path, label: str, steps: list[tuple[int, float]], outcome: Outcome) -> None:
        loaded, folder = load_config(config), config.parent

        def work(tell: object) -> None:
            clear_leftovers(loaded, RunDirectory(loaded.workspace_dir))
            run_here(config, "continue_last_backup=true", callback=_Telling(tell))

        status, lines, complaint = in_child(work)
        if status != 0:
            outcome.tracebacks.append(f"{label}, resumed: {complaint or 'hung'}")
            return
        start = next(int(line.split()[1]) for line in lines if line.startswith("from"))
        done = steps[-1][0] if steps else 0
        self.lost_steps.append(max(0, done - start))
        again = [at for step, at in steps if step > start]
        before = max((at for step, at in steps if step <= start), default=again[0] if again else 0.0)
        self.lost_seconds.append(again[-1] - before if again else 0.0)
        if done - start > EVERY:
            outcome.lost.append(f"{label}: {done - start} steps, backups are {EVERY} apart")
        if not same_weights(self.base / "whole" / "out.safetensors", folder / "out.safetensors"):
            outcome.other_end.append(f"{label}: other weights")
        outcome.rests += [f"{label}: {rest}" for rest in rests(folder)]

    def summary(self) -> dict[str, float]:
        """Median and largest of what kills cost."""
        steps, seconds = self.lost_steps or [0], self.lost_seconds or [0.0]
        return {
            "steps_median": statistics.median(steps),
            "steps_largest": max(steps),
            "seconds_median": round(statistics.median(seconds), 3),
            "seconds_largest": round(max(seconds), 3),
        }
