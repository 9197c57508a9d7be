"""A queue of runs, in a file that outlives the program."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from modules.runner.devices import run_using, waiting_for
from modules.runner.known_runs import one_start_at_a_time
from modules.runner.launcher import TrainerProcess, attach, launch, settle
from modules.runner.ProcessId import ProcessId
from modules.runner.RunDirectory import RunDirectory
from modules.util.errors import DataError, UserError, refused_as
from modules.util.files.locking import lock_within
from modules.util.jsonio import read_json, write_json

STATES = ("waiting", "running", "finished", "stopped", "failed")
VERSION = 1
LOCK_SECONDS = 10.0
_ANOTHER = "choose another folder for this run"


@dataclass
class QueueEntry:
    """One run in the queue.

    Args:
        id: its identifier in the queue.
        run_dir: its folder, with ``config.json``.
        title: the displayed title.
        state: one of ``STATES``.
        added: when it was added, seconds since the epoch.
        note: how it ended, or what it is waiting for.
        claimed: when its turn came, seconds since the epoch.
        starter: the program that has managed it since then.
    """

    id: str
    run_dir: str
    title: str
    state: str = "waiting"
    added: float = 0.0
    note: str = ""
    claimed: float = 0.0
    starter: dict[str, Any] | None = None

    @classmethod
    def from_dict(cls, data: object, where: str) -> QueueEntry:
        """Read an entry. Raises ``DataError`` for anything else."""
        if not isinstance(data, dict) or not data.keys() <= cls.__dataclass_fields__.keys():
            raise _damaged(f"{where} is not a queue entry")
        texts = [data.get(name, "") for name in ("id", "run_dir", "title", "state", "note")]
        times = [data.get(name, 0.0) for name in ("added", "claimed")]
        starter = data.get("starter")
        if (
            not {"id", "run_dir", "title"} <= data.keys()
            or not all(isinstance(text, str) for text in texts)
            or not data.get("id")
            or not data.get("run_dir")
            or data.get("state", "waiting") not in STATES
            or not all(type(value) in (int, float) for value in times)
            or not (starter is None or isinstance(starter, dict))
        ):
            raise _damaged(f"{where} is not a queue entry")
        return cls(**data)


def _damaged(message: str) -> DataError:
    return DataError(message, hint="move the file away to start with an empty queue")


class RunQueue:
    """The queue, stored in one file. Several programs may use it at once; every change is atomic.

    Raises:
        DataError: (every method) the file was damaged by others.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()

    def entries(self) -> list[QueueEntry]:
        """All entries in order."""
        if not self.path.exists():
            return []
        data = read_json(self.path, "queue of runs")
        entries = data.get("entries") if isinstance(data, dict) and data.get("version") == VERSION else None
        if not isinstance(entries, list):
            raise _damaged(f"{self.path} is not a run queue")
        return [QueueEntry.from_dict(entry, f"{self.path}, entry {n}") for n, entry in enumerate(entries)]

    def add(self, run: RunDirectory, config: dict[str, Any], title: str = "") -> QueueEntry:
        """Append a run with its current settings.

        Raises:
            UserError: its folder is already queued, or is being trained in.
        """
        with self._changing() as entries:
            if any(e.run_dir == str(run.path) and e.state in ("waiting", "running") for e in entries):
                raise UserError(f"{run.path} is already in the queue", hint=_ANOTHER)
            if run.is_live():
                raise UserError(f"training is running in {run.path}", hint=_ANOTHER)
            run.create()
            run.write_config(config)
            entry = QueueEntry(uuid.uuid4().hex, str(run.path), title or run.path.name, added=time.time())
            entries.append(entry)
        return entry

    def remove(self, entry_id: str) -> None:
        """Remove an entry. Raises ``UserError`` while it is running. Its folder stays."""
        with self._changing() as entries:
            entry = _find(entries, entry_id)
            if entry.state == "running":
                raise UserError(f"{entry.title} is running", hint="stop it first")
            entries.remove(entry)

    def move(self, entry_id: str, position: int) -> None:
        """Move an entry to another position (0 = first; beyond the end = last)."""
        with self._changing() as entries:
            entry = _find(entries, entry_id)
            entries.remove(entry)
            entries.insert(max(0, position), entry)

    def requeue(self, entry_id: str) -> None:
        """Queue an ended run again. It resumes from its last backup if its config says so."""
        with self._changing() as entries:
            entry = _find(entries, entry_id)
            if entry.state == "running":
                raise UserError(f"{entry.title} is running", hint="stop it first")
            entry.state, entry.note, entry.starter = "waiting", "", None

    def clear_ended(self) -> None:
        """Remove ended runs."""
        with self._changing() as entries:
            entries[:] = [entry for entry in entries if entry.state in ("waiting", "running")]

    def claim_next(self, hindrance: Callable[[QueueEntry], str] = lambda entry: "") -> QueueEntry | None:
        """Mark the first waiting run as running and return it; ``None`` if one is running or none can start.

        Args:
            hindrance: returns why a run cannot start now, which becomes its note; empty if it can.
        """
        with self._changing() as entries:
            if any(entry.state == "running" for entry in entries):
                return None
            for entry in entries:
                if entry.state == "waiting":
                    entry.note = hindrance(entry)
                    if entry.note:
                        return None
                    entry.state = "running"
                    entry.claimed, entry.starter = time.time(), ProcessId.own().to_dict()
                    return entry
        return None

    def set_state(self, entry_id: str, state: str, note: str = "") -> None:
        """Set the state of an entry. Ignored if it was removed in the meantime."""
        if state not in STATES:
            raise ValueError(f"no state {state!r}")
        with self._changing() as entries:
            for entry in entries:
                if entry.id == entry_id:
                    entry.state, entry.note, entry.starter = state, note, None

    @contextmanager
    def _changing(self) -> Iterator[list[QueueEntry]]:
        with self._lock_file() as handle:
            if not lock_within(handle, LOCK_SECONDS):
                raise UserError(f"the queue {self.path} is in use by a program that does not respond")
            entries = self.entries()
            before = [asdict(entry) for entry in entries]
            yield entries
            after = [asdict(entry) for entry in entries]
            if after != before:
                with self._writing():
                    write_json(self.path, {"version": VERSION, "entries": after})

    def _lock_file(self) -> IO[bytes]:
        with self._writing():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self.path.with_name(f"{self.path.name}.lock").open("a+b")

    def _writing(self) -> AbstractContextManager[None]:
        return refused_as(
            f"the queue {self.path} cannot be written",
            hint="free some space, or change the permissions of its folder",
        )


def _find(entries: list[QueueEntry], entry_id: str) -> QueueEntry:
    for entry in entries:
        if entry.id == entry_id:
            return entry
    raise UserError(f"there is no entry {entry_id!r} in the queue", hint="it was removed in the meantime")


class QueueRunner:
    """Works through a queue, one run at a time. Call ``tick`` about every second.

    A run waits while another trainer on this computer uses its device.
    """

    def __init__(self, queue: RunQueue, start: Callable[[RunDirectory], TrainerProcess] = launch) -> None:
        self.queue = queue
        self.active = False
        self._start = start
        self._trainers: dict[str, TrainerProcess] = {}

    def tick(self) -> None:
        """Record runs that have ended and, while ``active``, start the next one."""
        for entry in self.queue.entries():
            if entry.state == "running":
                self._look_after(entry)
        if self.active and any(entry.state == "waiting" for entry in self.queue.entries()):
            with one_start_at_a_time():
                self._start_next()

    def _start_next(self) -> None:
        claimed = self.queue.claim_next(_hindrance)
        if claimed is None:
            return
        try:
            self._trainers[claimed.id] = self._start(RunDirectory(claimed.run_dir))
        except Exception as error:
            self.queue.set_state(claimed.id, "failed", str(error))
            if not isinstance(error, UserError):
                raise

    def _look_after(self, entry: QueueEntry) -> None:
        run = RunDirectory(entry.run_dir)
        trainer = self._trainers.get(entry.id)
        if trainer is None:
            starter = ProcessId.from_dict(entry.starter)
            if starter is not None and starter != ProcessId.own() and starter.alive():
                return  # another program manages it, and only that one learns the exit status
            trainer = attach(run)
        if trainer is not None:
            self._trainers[entry.id] = trainer
            outcome = trainer.poll()
        elif not _was_launched(run, entry):
            self.queue.set_state(entry.id, "waiting")  # its program died before starting it
            return
        else:
            outcome = settle(run)
        if outcome is not None:
            self._trainers.pop(entry.id, None)
            self.queue.set_state(entry.id, outcome.category if outcome.ok else "failed", outcome.message)


def _hindrance(entry: QueueEntry) -> str:
    run = RunDirectory(entry.run_dir)
    device = run.wanted_device()
    other = run_using(device)
    return "" if other is None else waiting_for(other, device)


def _was_launched(run: RunDirectory, entry: QueueEntry) -> bool:
    when = run.launch_record().get("t")
    return isinstance(when, float) and when >= entry.claimed
