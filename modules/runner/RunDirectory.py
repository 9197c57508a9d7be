"""The folder through which a run and everybody who watches it talk."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import IO, Any

from modules.runner.commands import Command, post_command, take_commands
from modules.runner.events import EventReader, EventWriter
from modules.util.errors import UserError
from modules.util.jsonio import write_json
from modules.util.locking import try_lock


class RunDirectory:
    """Names of the files of one run.

    ``config.json``, ``events.jsonl``, ``commands/``, ``log.txt``, ``samples/``, ``backup/``, ``save/``,
    ``tensorboard/``, and ``run.lock`` with ``process.json`` while a trainer works in it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.config = self.path / "config.json"
        self.events = self.path / "events.jsonl"
        self.commands = self.path / "commands"
        self.log = self.path / "log.txt"
        self.samples = self.path / "samples"
        self.backup = self.path / "backup"
        self.save = self.path / "save"
        self.tensorboard = self.path / "tensorboard"
        self._process = self.path / "process.json"
        self._lock_path = self.path / "run.lock"
        self._lock: IO[bytes] | None = None

    def create(self) -> RunDirectory:
        """Make the folder. ``UserError`` when that is not possible."""
        try:
            for folder in (self.path, self.commands):
                folder.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".write-test-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise UserError(
                f"the folder {self.path} cannot be written: {error.strerror}",
                field="workspace_dir",
                hint="choose another folder, or change its permissions",
            ) from error
        return self

    def __truediv__(self, name: str) -> Path:
        """A file of the run; a name that leaves the folder is refused."""
        target = (self.path / name).resolve()
        if not target.is_relative_to(self.path.resolve()):
            raise UserError(f"{name!r} is not inside the run's folder")
        return target

    # --- the trainer's side --------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Claim the run for this process; the claim dies with it.

        Raises:
            UserError: another process is training here.
        """
        handle = self._lock_path.open("a+b")
        if not try_lock(handle):
            handle.close()
            raise UserError(
                f"another process is training in {self.path}", hint="stop it, or choose another --run-dir"
            )
        self._lock = handle
        write_json(self._process, {"pid": os.getpid(), "start": process_start(os.getpid()), "t": time.time()})

    def unlock(self) -> None:
        """Give the run back."""
        if self._lock is not None:
            self._process.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def writer(self) -> EventWriter:
        """For the events of this process."""
        return EventWriter(self.events)

    def take_commands(self) -> tuple[list[Command], list[str]]:
        """Orders given since the last call."""
        return take_commands(self.commands)

    # --- everybody else's side -----------------------------------------------------------------------------------

    def reader(self) -> EventReader:
        """Events from the beginning of the run."""
        return EventReader(self.events)

    def running_process(self) -> int | None:
        """The process that trains here, or ``None``; a number used again by another process does not count."""
        try:
            data = json.loads(self._process.read_bytes())
            pid, start = int(data["pid"]), data["start"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return pid if process_start(pid) == start and start is not None else None

    def post(self, kind: str, **arguments: Any) -> str:
        """Order something of the running trainer.

        Raises:
            UserError: nothing is running here, or there is no such command.
        """
        if self.running_process() is None:
            raise UserError(f"no training is running in {self.path}", hint="start it first")
        return post_command(self.commands, kind, **arguments)

    def status(self) -> dict[str, Any]:
        """Whether it runs, and its last events by kind."""
        last: dict[str, dict[str, Any]] = {}
        for event in self.reader().poll():
            last[event["kind"]] = event
        pid = self.running_process()
        ended = last.get("run_finished", {})
        started = last.get("run_started", {"seq": 0})
        finished = ended.get("status") if ended.get("seq", 0) > started["seq"] else None
        state = "running" if pid is not None else (finished or ("died" if last else "never started"))
        return {"path": str(self.path), "state": state, "pid": pid, "last": last}


def process_start(pid: int) -> float | None:
    """When a process started, in seconds since the epoch: its identity beside the number. ``None``: gone."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.Error:
        return None
