"""The folder through which a run communicates with its watchers."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any

from modules.runner.commands import Command, post_command, take_commands
from modules.runner.events import EventReader, EventWriter, last_sequence
from modules.runner.known_runs import note_run
from modules.runner.ProcessId import ProcessId
from modules.util.errors import UserError, refused_as
from modules.util.files.locking import lock_within
from modules.util.jsonio import read_json, write_json
from modules.util.owned_files import Owned

log = logging.getLogger(__name__)

RECORD_BYTES, CONFIG_BYTES = 1 << 16, 1 << 24
# A watcher holds the lock briefly when it records the end of a dead run.
LOCK_PATIENCE = 2.0
LAUNCHED_IN = "TASTEMAKER_LAUNCHED_IN"
"""Environment variable of a launched trainer: the path of its run."""
BROUGHT_ALONG = ".tastemaker-brought-along"
"""Empty file that marks ``config.json`` as a person's until the first run has written its own."""
MIRROR = ".tastemaker-remote"
"""Subfolder of a run that mirrors a run on another computer."""


class RunDirectory:
    """The files of a run, and the process that works in it.

    ``config.json``, ``events.jsonl``, ``commands/``, ``log.txt``, ``samples/``, ``backup/``, ``save/``,
    ``tensorboard/``. ``process.json`` and ``launch.json`` identify the training process and how it was
    started. ``run.lock`` is locked while it is alive.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.config_path = self.path / "config.json"
        self.events_path = self.path / "events.jsonl"
        self.commands_dir = self.path / "commands"
        self.log_path = self.path / "log.txt"
        self.samples_dir = self.path / "samples"
        self.backup_dir = self.path / "backup"
        self.save_dir = self.path / "save"
        self.tensorboard_dir = self.path / "tensorboard"
        self.process_path = self.path / "process.json"
        self.launch_path = self.path / "launch.json"
        self._lock_path = self.path / "run.lock"
        self._lock: IO[bytes] | None = None

    def create(self) -> RunDirectory:
        """Create the folder. Raises ``UserError`` if that is impossible."""
        # settings in a folder that was none of a run so far are a person's
        new = not self.commands_dir.is_dir() and not self.events_path.exists()
        with self._writing():
            if new and self.config_path.is_file():
                self._owned().append(BROUGHT_ALONG, b"")
            self.commands_dir.mkdir(parents=True, exist_ok=True)
            owned, probe = self._owned(), f".tastemaker-{secrets.token_hex(8)}.tmp"
            owned.append(probe, b"")
            owned.remove(probe)
        return self

    def write_config(self, config: dict[str, Any]) -> None:
        """Write the settings of the run. Other ones that were there before the first run are kept under another name.

        Raises:
            UserError: the folder cannot be written.
        """
        with self._writing():
            if (self.path / BROUGHT_ALONG).is_file():
                if self.config_path.is_file() and self._read(self.config_path, CONFIG_BYTES) != config:
                    aside = self._owned().put_aside(self.config_path.name)
                    said = "%s holds the settings of the run from now on; the former file is %s"
                    log.warning(said, self.config_path, aside)
                self._owned().remove(BROUGHT_ALONG)
            write_json(self.config_path, config)

    def _owned(self) -> Owned:
        return Owned(self.path, local=True)

    def _writing(self) -> AbstractContextManager[None]:
        return refused_as(
            f"the folder {self.path} cannot be written",
            field="workspace_dir",
            hint="choose another folder, free some space, or change its permissions",
        )

    def __truediv__(self, name: str) -> Path:
        """A file of the run. A name that leads out of the folder (also through a link) is refused."""
        try:
            target = (self.path / name).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(f"{name!r} is not a file name: {error}") from error
        if not target.is_relative_to(self.path.resolve()):
            raise UserError(f"{name!r} is not inside the run's folder {self.path}")
        return target

    # --- the trainer's side -----------------------------------------------------------------------------

    def lock(self, device: str = "") -> None:
        """Lock the run for this process until it ends. Commands left over from an earlier trainer are
        dropped.

        Args:
            device: the device it will use, if known; see ``compute_on``.

        Raises:
            UserError: another process is training here.
        """
        self.create()
        handle = self._claim(LOCK_PATIENCE)
        if handle is None:
            raise UserError(
                f"another process is training in {self.path}", hint="stop it, or choose another --run-dir"
            )
        self._lock = handle
        if hasattr(os, "register_at_fork"):
            # A helper that outlives this process would keep the lock.
            os.register_at_fork(after_in_child=handle.close)
        try:
            with self._writing():
                self._take_over()
                # before recording the process, so that whoever sees it training also finds it in the list
                note_run(self.path)
                self.compute_on(device)
        except UserError:
            self.unlock()
            raise

    def compute_on(self, device: str) -> None:
        """Record which device this process uses, so that other runs can wait for it."""
        write_json(self.process_path, {**ProcessId.own().to_dict(), "device": device})

    def _take_over(self) -> None:
        self._clear_orders()
        if self._started_by_hand():
            # What is known of an earlier start does not apply to this one.
            record = {"t": time.time(), "sequence": last_sequence(self.events_path)}
            write_json(self.launch_path, record)

    @property
    def is_mirror(self) -> bool:
        """True if the run is on another computer, from which events and files are copied here."""
        return (self.path / MIRROR).is_dir()

    def _started_by_hand(self) -> bool:
        # The launcher may not have written its record yet, so it also identifies itself through the
        # environment.
        told = os.environ.get(LAUNCHED_IN, "")
        return self.launched() is None and (not told or Path(told).resolve() != self.path.resolve())

    def _clear_orders(self) -> None:
        take_commands(self.commands_dir)
        for half in self.commands_dir.glob("*.taken"):  # from a trainer that died while reading them
            self._owned().remove(f"{self.commands_dir.name}/{half.name}")

    def unlock(self) -> None:
        """Release the run."""
        if self._lock is not None:
            self._owned().remove(self.process_path.name)
            self._lock.close()
            self._lock = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """``lock`` for the duration of a block."""
        self.lock()
        try:
            yield
        finally:
            self.unlock()

    @contextmanager
    def undisturbed(self) -> Iterator[bool]:
        """Lock out trainers briefly, for a watcher. Yields ``False`` if one is running."""
        handle = self._claim(0.0) if self.path.is_dir() else None
        try:
            yield handle is not None
        finally:
            if handle is not None:
                handle.close()

    def _claim(self, patience: float) -> IO[bytes] | None:
        handle = self._lock_path.open("a+b")
        if lock_within(handle, patience, pause=0.05):
            return handle
        handle.close()
        return None

    def writer(self) -> EventWriter:
        """A writer for the events of this process."""
        return EventWriter(self.events_path)

    def take_commands(self) -> tuple[list[Command], list[str]]:
        """Commands since the last call, and the names of invalid command files."""
        return take_commands(self.commands_dir)

    # --- everybody else's side --------------------------------------------------------------------------

    def reader(self) -> EventReader:
        """A reader that starts at the beginning of the run."""
        return EventReader(self.events_path)

    def trainer(self) -> ProcessId | None:
        """The process that is training here, or ``None``."""
        found = ProcessId.from_dict(self._read(self.process_path))
        return found if found is not None and found.alive() else None

    def process_record(self) -> dict[str, Any]:
        """The trainer's record of its process; empty if none has claimed the run."""
        record = self._read(self.process_path)
        return record if isinstance(record, dict) else {}

    def wanted_device(self) -> str:
        """``train_device`` in the run's settings; ``auto`` if they do not set it."""
        config = self._read(self.config_path, CONFIG_BYTES)
        device = config.get("train_device") if isinstance(config, dict) else None
        return device if isinstance(device, str) and device else "auto"

    def launched(self) -> ProcessId | None:
        """The running process that was started to train here. It may not be the ``trainer()`` yet."""
        found = ProcessId.from_dict(self.launch_record().get("process"))
        return found if found is not None and found.alive() else None

    def is_live(self) -> bool:
        """Return whether a trainer is working here or starting."""
        return self.trainer() is not None or self.launched() is not None

    def launch_record(self) -> dict[str, Any]:
        """The launcher's record of the last start of a trainer; empty if there was none."""
        record = self._read(self.launch_path)
        return record if isinstance(record, dict) else {}

    @staticmethod
    def _read(path: Path, max_bytes: int = RECORD_BYTES) -> Any:
        """Read a small JSON file of ours; ``None`` if it is missing or was damaged by others."""
        try:
            return read_json(path, max_bytes=max_bytes)
        except UserError:
            return None

    def post(self, kind: str, **arguments: Any) -> str:
        """Send a command to the running trainer. Returns the id that its ``command`` events refer to.

        Raises:
            UserError: no trainer is running here, or the command does not exist.
        """
        if self.trainer() is None:
            raise UserError(f"no training is running in {self.path}", hint="start it first")
        return post_command(self.commands_dir, kind, **arguments)
