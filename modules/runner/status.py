"""The status of a run, derived from its events and its process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modules.runner.RunDirectory import RunDirectory

STATES = ("new", "starting", "running", "paused", "finished", "stopped", "failed", "died", "remote")
ENDED = ("finished", "stopped", "failed")


@dataclass
class RunStatus:
    """The status of a run, as shown in a window.

    Args:
        state: one of ``STATES``; ``died`` means that it ended without reporting it, ``remote`` that it is on
            another computer and had not ended when its events were last copied.
        pid: process number of the trainer, if there is one.
        phase: the latest ``phase`` event (name, done, total).
        step: the latest ``step`` event (metrics, progress, eta).
        validation: the latest ``validation`` event.
        files: the latest path of each kind (``sample``, ``backup``, ``save``).
        warnings: number of warnings since the start.
        error: the latest ``error`` event since the start (message, hint, category).
        started: time of the last start, seconds since the epoch.
        updated: time of the latest event.
        sequence: number of the latest event.
    """

    path: str
    state: str = "new"
    pid: int | None = None
    phase: dict[str, Any] | None = None
    step: dict[str, Any] | None = None
    validation: dict[str, Any] | None = None
    files: dict[str, str] = field(default_factory=dict)
    warnings: int = 0
    error: dict[str, Any] | None = None
    started: float | None = None
    updated: float | None = None
    sequence: int = 0

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class StatusFollower:
    """Keeps a ``RunStatus`` up to date. Every event is read once."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.reader = run.reader()
        self.status = RunStatus(str(run.path))
        self._said = "new"
        self._start: object = None
        self._announced = False

    @property
    def said(self) -> str:
        """The state according to the events alone: ``new``, ``running``, ``paused``, or how the run ended."""
        return self._said

    def poll(self, max_bytes: int | None = None) -> list[dict[str, Any]]:
        """Read new events, update ``status``, and return the events.

        Args:
            max_bytes: maximum size to read at once; call again until ``reader.at_end``.
        """
        # The process is checked before the events: if it ends in between, it has already reported that.
        trainer, launched = self.run.trainer(), self.run.launched()
        events = self.reader.poll(max_bytes)
        # The record is read after the events: they cannot tell of a start that is not recorded.
        record = self.run.launch_record()
        since = record.get("sequence")
        for event in events:
            if type(since) is int and event["seq"] > since:
                self._begin(record)
            self._take(event)
        if type(since) is int and self.reader.at_end:
            self._begin(record)
        self.status.pid = trainer.pid if trainer else None
        ended = self._said in ENDED
        if trainer is not None:
            self.status.state = "paused" if self._said == "paused" else "running"
        elif launched is not None and not ended:
            self.status.state = "starting"
        elif ended or self._said == "new":
            self.status.state = self._said
        else:
            self.status.state = "remote" if self.run.is_mirror else "died"
        return events

    def _begin(self, record: dict[str, Any]) -> None:
        """Forget the previous start if ``record`` is of another one. Loading precedes ``run_started``."""
        start = record.get("t")
        if start != self._start:
            self._start, self._announced = start, False
            self._renew(start)

    def _renew(self, when: object) -> None:
        status = self.status
        started = float(when) if isinstance(when, (int, float)) else None
        self.status = RunStatus(
            status.path, started=started, files=status.files, updated=status.updated, sequence=status.sequence
        )
        self._said = "running"

    def _take(self, event: dict[str, Any]) -> None:
        kind, when = event["kind"], event.get("t")
        if kind == "run_started":
            if self._announced or self._start is None:
                self._renew(when)
            self._announced = True
        status = self.status
        status.updated = when if isinstance(when, (int, float)) else status.updated
        status.sequence = event["seq"]
        if kind in ("phase", "step", "validation", "error"):
            setattr(status, kind, event)
        elif kind in ("sample", "backup", "save") and isinstance(event.get("path"), str):
            status.files[kind] = event["path"]
        elif kind == "warning":
            status.warnings += 1
        elif kind == "command" and event.get("state") == "done":
            self._said = {"pause": "paused", "resume": "running"}.get(str(event.get("command")), self._said)
        elif kind == "run_finished":
            self._said = str(event.get("status")) if event.get("status") in ENDED else "failed"


def read_status(run: RunDirectory) -> RunStatus:
    """The current status of a run."""
    follower = StatusFollower(run)
    follower.poll()
    return follower.status
