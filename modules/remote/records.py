"""Runs started on other computers: the location of each, and its local mirror folder."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from modules.remote.there.limits import EVENTS, RUN_ID
from modules.runner.known_runs import note_run
from modules.runner.RunDirectory import MIRROR, RunDirectory
from modules.util.config.remote.RemoteConfig import RemoteConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from modules.util.files.user_folder import settings_folder
from modules.util.jsonio import read_json, write_json
from modules.util.owned_files import Owned, shown

FOLDER = "remote-runs"
MAX_BYTES = 1 << 16
_STAMP = r"\d{8}-\d{6}-[0-9a-f]{4}"
"""The end of a name from ``starting.new_name``."""


@dataclass(frozen=True)
class Record:
    """One run on another computer.

    Args:
        run: its name there.
        folder: the local folder for its events and files.
        started: seconds since 1970.
    """

    run: str
    remote: RemoteConfig
    folder: Path
    started: float

    @property
    def mirror(self) -> RunDirectory:
        """The local folder as a run folder."""
        return RunDirectory(self.folder)


def keep(record: Record) -> None:
    """Save the record of a run.

    Raises:
        OSError: the settings folder is not writable.
    """
    folder = settings_folder() / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    data = {"remote": record.remote.to_dict(), "folder": str(record.folder), "started": record.started}
    write_json(folder / f"{record.run}.json", data)


def find(run: str | None) -> Record:
    """Find the record of a run; without a name, the newest.

    Raises:
        UserError: there is no record.
    """
    names = known()
    if run is None and names:
        run = names[-1]
    if run is None or run not in names:
        what = f"no remote run {shown(run)} is known" if run else "no remote run was started from here"
        listed = f"known: {', '.join(names[-5:])}" if names else "start one: scripts/train_remote.py start"
        raise UserError(what, hint=listed)
    path = _path_of(run)
    data = read_json(path, "record of a remote run", MAX_BYTES)
    if not isinstance(data, Mapping) or not isinstance(data.get("folder"), str):
        raise UserError(f"{path} is damaged", hint="remove it")
    started = data.get("started")
    return Record(
        run, RemoteConfig.from_dict(data.get("remote", {}), "remote"), Path(data["folder"]),
        float(started) if isinstance(started, (int, float)) else 0.0,
    )  # fmt: skip


def of_folder(folder: Path) -> tuple[Record | None, list[Path]]:
    """The record of the run whose events and files come to a folder.

    Returns:
        The record, if there is one, and the files of damaged records that were skipped on the way to it.
    """
    damaged: list[Path] = []
    for run in reversed(known()):
        try:
            record = find(run)
        except UserError:
            damaged.append(_path_of(run))
            continue
        if record.folder == folder:
            return record, damaged
    return None, damaged


def _path_of(run: str) -> Path:
    return settings_folder() / FOLDER / f"{run}.json"


def known() -> list[str]:
    """Names of all recorded runs, newest last."""
    folder = settings_folder() / FOLDER
    found = [path for path in folder.glob("*.json") if RUN_ID.fullmatch(path.stem)] if folder.is_dir() else []
    return [path.stem for path in sorted(found, key=lambda path: (_time_in(path.stem), path.stat().st_mtime))]


def drop(record: Record, with_folder: bool) -> None:
    """Remove the record of a run that did not begin.

    Args:
        with_folder: whether to remove its folder too, which was made for it.

    Raises:
        UserError: the removal is refused.
    """
    Owned(settings_folder() / FOLDER, local=True).remove(f"{record.run}.json")
    if with_folder:
        Owned(record.folder.parent, local=True).remove_tree(record.folder.name)


def _time_in(run: str) -> str:
    found = re.findall(r"\d{8}-\d{6}", run)  # the name of its workspace may be that of an older run
    return found[-1] if found else ""


def without_time(run: str) -> str:
    """The name of a run without the time and the letters that ``starting.new_name`` added."""
    return re.sub(f"(-{_STAMP})+$", "", run)


def folder_here(mirror: Path) -> Path:
    """A folder next to the mirror of a run, for training here with its settings."""
    name = without_time(mirror.name)
    return mirror.with_name(name if name != mirror.name else f"{name}-here")


def check_mirror(run: str, folder: Path) -> None:
    """Refuse a folder that holds the files of another run, of this computer or of another one.

    Raises:
        UserError: it does.
    """
    known, _ = of_folder(folder)
    here = RunDirectory(folder)
    own = known is None and here.events_path.exists() and not here.is_mirror
    if own or (known is not None and known.run != run):
        what = "a run of this computer" if known is None else f"the run {known.run}"
        raise UserError(f"{shown(folder)} holds the files of {what}", "--to", "choose another folder")


def begin_mirror(run: str, remote: RemoteConfig, config: TrainConfig, folder: Path) -> Record:
    """Create the local mirror folder of a run, and record the run.

    The folder holds the settings with local paths, so that the window opens it like any run.

    Raises:
        UserError: the folder is not writable, or holds the files of another run.
    """
    check_mirror(run, folder)
    made = config.packed()
    made.workspace_dir = str(folder)
    made.output_model_destination = str(folder / "model" / Path(config.output_model_destination).name)
    mirror = RunDirectory(folder).create()
    owned = Owned(folder, local=True)
    owned.folder(MIRROR)
    mirror.write_config(made.to_dict())
    owned.append(EVENTS, b"")  # the list of runs shows folders with events
    record = Record(run, remote, mirror.path, time.time())
    keep(record)
    note_run(mirror.path)
    return record
