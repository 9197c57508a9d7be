"""Starts a trainer in a separate process, finds it again, and reports why it ended."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from modules.runner.events import ERROR_CATEGORIES, last_sequence, step_of
from modules.runner.known_runs import note_run
from modules.runner.outcome import TAIL_BYTES, Outcome, interpret
from modules.runner.ProcessId import ProcessId
from modules.runner.RunDirectory import LAUNCHED_IN, RunDirectory
from modules.runner.status import StatusFollower
from modules.util.errors import UserError, refused_as
from modules.util.jsonio import write_json
from modules.util.program_files import ROOT

_log = logging.getLogger(__name__)

WAIT_STEP = 0.05


def train_command(run: RunDirectory) -> list[str]:
    """The command line that trains with a run's ``config.json``."""
    script = ROOT / "scripts" / "train.py"
    return [sys.executable, str(script), "--config-path", str(run.config_path), "--run-dir", str(run.path)]


class TrainerProcess:
    """A trainer that this process started or found running.

    Args:
        popen: the handle, if this process started it; only then is its exit status known.
    """

    def __init__(self, run: RunDirectory, process: ProcessId, popen: subprocess.Popen[bytes] | None) -> None:
        self.run = run
        self.process = process
        self._popen = popen
        self._outcome: Outcome | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    def poll(self) -> Outcome | None:
        """Return ``None`` while it is running, then how it ended. An unreported death is added to the run's
        events.
        """
        if self._outcome is None:
            code = self._popen.poll() if self._popen else None
            if code is not None or (self._popen is None and not self.process.alive()):
                self._outcome = settle(self.run, code)
        return self._outcome

    def wait(self, timeout: float | None = None) -> Outcome | None:
        """Repeat ``poll`` until it has ended or ``timeout`` seconds are over."""
        until = None if timeout is None else time.monotonic() + timeout
        while (outcome := self.poll()) is None:
            if until is not None and time.monotonic() >= until:
                return None
            time.sleep(WAIT_STEP)
        return outcome

    def end(self, grace: float = 10.0) -> None:
        """End the trainer and its helpers now: first by request, then by force. For a clean stop, send the
        command ``stop``.
        """
        record = self.run.launch_record()
        write_json(self.run.launch_path, {**record, "ended": True})
        if self._popen is not None and self._popen.poll() is not None:
            return
        self.process.end(grace)


def launch(
    run: RunDirectory, config: Mapping[str, Any] | None = None, command: Sequence[str] | None = None
) -> TrainerProcess:
    """Start a trainer in its own session, with output to ``log.txt``. It survives this process.

    Args:
        config: written to the run's ``config.json`` first; ``None`` keeps the existing file.
        command: default ``train_command(run)``.

    Raises:
        UserError: a trainer is running there, the folder mirrors a run on another computer, there is no config,
            or it cannot be started.
    """
    if run.is_mirror:  # both trainers would write to the same files
        raise UserError(
            f"{run.path} holds the files of a run on another computer", "workspace_dir",
            "choose another folder, or resume the run there",
        )  # fmt: skip
    run.create()
    if run.is_live():
        raise UserError(f"training is already running in {run.path}", hint="stop it or choose another folder")
    if config is not None:
        run.write_config(dict(config))
    elif command is None and not run.config_path.is_file():
        raise UserError(f"{run.config_path} does not exist", hint="save the settings of the run there first")
    line = list(command) if command is not None else train_command(run)
    record = {"command": line, "t": time.time(), "sequence": last_sequence(run.events_path)}
    with run.log_path.open("ab") as log:
        title = f"=== {time.strftime('%Y-%m-%d %H:%M:%S')} started: {subprocess.list2cmdline(line)}\n"
        log.write(title.encode("utf-8", "surrogateescape"))
        log.flush()
        record["log_offset"] = log.tell()
        popen = _spawn(line, run, log.fileno())
    process = ProcessId.of(popen.pid) or ProcessId(popen.pid, "gone")
    write_json(run.launch_path, {**record, "process": process.to_dict()})
    note_run(run.path)
    return TrainerProcess(run, process, popen)


def _spawn(line: list[str], run: RunDirectory, log: int) -> subprocess.Popen[bytes]:
    flags = 0
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
    extra = {
        LAUNCHED_IN: str(run.path),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONIOENCODING": "utf-8",
    }
    with refused_as(f"{line[0]} cannot be started", hint="run the setup again"):
        return subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **extra},
            start_new_session=True,
            creationflags=flags,
        )


def attach(run: RunDirectory) -> TrainerProcess | None:
    """The trainer that is working in a run, whoever started it; ``None`` if there is none."""
    process = run.launched() or run.trainer()
    return None if process is None else TrainerProcess(run, process, None)


def settle(run: RunDirectory, returncode: int | None = None) -> Outcome | None:
    """Find out how the last trainer of a run ended, and add events for it if it could not do so itself.

    Returns:
        ``None`` if a trainer is running there again, or none ever was.
    """
    with run.undisturbed() as alone:
        if not alone:
            return None
        record = run.launch_record()
        started, error, finished = _last_words(run, record.get("sequence", 0))
        if finished is not None:
            return _with_resume(run, _as_told(finished, error))
        if not started and not record:
            return None
        if record.get("ended") is True:
            outcome = Outcome("killed", "the trainer was ended on request")
        else:
            outcome = interpret(returncode, log_tail(run))
        outcome = _with_resume(run, outcome)
        try:
            with run.writer() as writer:
                if not outcome.ok:
                    writer.emit(
                        "error", message=outcome.message, hint=outcome.hint, category=outcome.category
                    )
                writer.emit("run_finished", status=outcome.category if outcome.ok else "failed")
        except (UserError, OSError) as error:  # perhaps the very reason why it ended: a full disk
            _log.warning("the end of the run in %s cannot be recorded: %s", run.path, error)
        return outcome


def _last_words(
    run: RunDirectory, after: object
) -> tuple[bool, dict[str, Any] | None, dict[str, Any] | None]:
    """From the last start: whether training began, its ``error`` event and its ``run_finished`` event."""
    started, error, finished = False, None, None
    for event in run.reader().poll():
        if isinstance(after, int) and event["seq"] <= after:
            continue
        if event["kind"] == "run_started":
            started, error, finished = True, None, None
        elif event["kind"] == "error":
            error = event
        elif event["kind"] == "run_finished":
            finished = event
    return started, error, finished


def _with_resume(run: RunDirectory, outcome: Outcome) -> Outcome:
    """Add where the run resumes, if it lost steps."""
    if outcome.ok or outcome.category in ("user", "setup"):
        return outcome
    where = resume_point(run)
    if where in outcome.hint:  # already recorded
        return outcome
    return replace(outcome, hint=f"{outcome.hint}. {where}" if outcome.hint else where)


def resume_point(run: RunDirectory) -> str:
    """The step the run resumes from according to its events, in one sentence."""
    step, total = _last_backup(run.reader().poll())
    if not total:
        return "Training had not begun"
    if not step:
        return f"There is no backup yet: the next start begins at step 0 of {total}"
    return f"With continue_last_backup the next start resumes after step {step} of {total}"


def unfinished(run: RunDirectory) -> tuple[int, int] | None:
    """Step of the last backup and total number of steps, of a run that ended early; otherwise ``None``."""
    if not run.backup_dir.is_dir():
        return None
    follower = StatusFollower(run)
    events = follower.poll()
    if follower.status.state not in ("died", "failed", "stopped"):
        return None
    step, total = _last_backup(events)
    return (step, total) if 0 < step < total else None


def _last_backup(events: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Step of the last backup (or 0) and total number of steps (0 if training had not begun), from a run's events."""
    step, total = 0, 0
    for event in events:
        at = step_of(event)
        if event["kind"] == "run_started":
            total = event["total_steps"] if isinstance(event.get("total_steps"), int) else 0
            # a new run moves the backups of the previous run aside
            step = at if event.get("resumed_from") and at is not None else 0
        elif event["kind"] == "backup" and at is not None:
            step = at
    return step, total


def _as_told(finished: dict[str, Any], error: dict[str, Any] | None) -> Outcome:
    status = finished.get("status")
    if status in ("finished", "stopped"):
        return Outcome(
            str(status), "the training was stopped" if status == "stopped" else "the training is complete"
        )
    told = error or {}
    category = told.get("category")
    return Outcome(
        category if category in ERROR_CATEGORIES else "bug",
        str(told.get("message", "the training failed")),
        str(told.get("hint", "")),
    )


def log_tail(run: RunDirectory, max_bytes: int = TAIL_BYTES) -> str:
    """The end of the output of a run's last trainer; empty if it was not started by ``launch``."""
    offset = run.launch_record().get("log_offset")
    if type(offset) is not int or offset < 0:
        return ""
    try:
        with run.log_path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            begin = offset if offset <= size else 0
            stream.seek(max(begin, size - max_bytes))
            return stream.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
