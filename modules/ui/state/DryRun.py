"""Checks whether Start would succeed, by a dry run on files and model in a separate process. No Tk here."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modules.runner.pace import last_pace
from modules.ui.state.ConfigState import Problem
from modules.ui.state.runs.Forecast import Forecast, Memory
from modules.ui.texts import run as words
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from modules.util.jsonio import parse_json, write_json
from modules.util.program_files import ROOT

DRY_RUN = (sys.executable, str(ROOT / "scripts" / "train.py"), "--dry-run", "--json")


@dataclass(frozen=True)
class Found:
    """Findings of a dry run: problems, and if there are no errors, the predicted cost of the run."""

    problems: list[Problem]
    forecast: Forecast = field(default_factory=Forecast)


class DryRun:
    """One check of the files of a config.

    Args:
        command: command line that prints the outcome as JSON; the path of the config is appended.
        config: the config as plain data.
    """

    def __init__(self, command: Sequence[str], config: dict[str, Any]) -> None:
        self._command, self._config = tuple(command), config
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._cancelled = False

    def run(self) -> Found:
        """Return problems and forecast after some seconds. If cancelled, the result is meaningless."""
        with tempfile.TemporaryDirectory(prefix="tastemaker-check-") as folder:
            path = Path(folder) / "config.json"
            write_json(path, self._config)
            with self._lock:
                if self._cancelled:
                    return Found([])
                process = self._process = self._start(path)
            _step_back(process)
            said, complaints = process.communicate()
        return self._found(said, complaints)

    def _found(self, said: str, complaints: str) -> Found:
        try:
            data = parse_json(said, "outcome of the dry run")
            errors = [
                Problem(str(one.get("field") or ""), str(one["message"]), str(one.get("hint") or ""))
                for one in data["errors"]
            ]
            problems = errors + [Problem("", str(text), warning=True) for text in data["warnings"]]
            if errors or "steps" not in data:
                return Found(problems)
            memory, steps = Memory.from_dict(data["memory"]), int(data["steps"])
            epoch_steps = int(data.get("steps_per_epoch", 0))
        except (UserError, LookupError, TypeError, ValueError, AttributeError):
            last = complaints.strip().rpartition("\n")[2] or words.SAID_NOTHING
            return Found([Problem("", words.NOT_CHECKED.format(reason=last), warning=True)])
        pace = last_pace(self._config)
        return Found(problems, Forecast(memory, steps, None if pace is None else pace.seconds, epoch_steps))

    def _start(self, path: Path) -> subprocess.Popen[str]:
        flags = getattr(subprocess, "CREATE_NO_WINDOW", 0)
        return subprocess.Popen(
            [*self._command, "--config-path", str(path)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace", creationflags=flags,
        )  # fmt: skip

    def cancel(self) -> None:
        """Cancel the check."""
        with self._lock:
            self._cancelled = True
            if self._process is not None and self._process.poll() is None:
                self._process.kill()


def no_images(config: TrainConfig) -> Problem | None:
    """The problem of a config without training images. Unlike problems of files, it is known immediately."""
    if config.needs_no_images():
        return None
    if config.concepts is None and Path(config.concept_file_name).exists():
        return None
    if any(concept.enabled for concept in config.concepts or ()):
        return None
    return Problem("concepts", words.NO_IMAGES, words.NO_IMAGES_HINT)


def _step_back(process: subprocess.Popen[str]) -> None:
    """Lower the priority of the process below everything else on this computer."""
    import psutil

    try:
        low = psutil.BELOW_NORMAL_PRIORITY_CLASS if sys.platform == "win32" else 10
        psutil.Process(process.pid).nice(low)
    except psutil.Error:  # it has already ended
        return
