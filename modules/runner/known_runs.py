"""The list of folders in which trainers were started on this computer, newest last, whoever started them.

A run folder may be anywhere, so this list is needed to know whether a graphics card is in use. It is stored
with the settings of the user. A trainer that cannot write to it still trains.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modules.util.errors import UserError
from modules.util.files.locking import lock_within
from modules.util.files.user_folder import settings_folder
from modules.util.jsonio import read_json, write_json

log = logging.getLogger(__name__)
FILE_NAME = "known-runs.json"
VERSION = 1
MAX_RUNS = 500
LIST_SECONDS = 2.0
START_SECONDS = 10.0


def note_run(folder: Path) -> None:
    """Append a run's folder to the list."""
    path = settings_folder() / FILE_NAME
    try:
        with _locked(path.with_suffix(".lock"), LIST_SECONDS):
            others = [name for name in known_runs() if name != folder]
            names = [str(name) for name in [*others, folder][-MAX_RUNS:]]
            write_json(path, {"version": VERSION, "runs": names})
    except (OSError, UserError) as error:
        log.warning("other programs will not see the run in %s: %s", folder, error)


def known_runs() -> list[Path]:
    """The folders in the list. A damaged list counts as empty, and the next start writes a new one."""
    path = settings_folder() / FILE_NAME
    if not path.exists():
        return []
    try:
        data = read_json(path, "list of runs", max_bytes=1 << 22)
    except UserError as error:
        log.warning("%s", error)
        return []
    runs = data.get("runs") if isinstance(data, dict) else None
    names = runs if isinstance(runs, list) else []
    return [Path(name) for name in names if isinstance(name, str) and Path(name).is_absolute()]


@contextmanager
def one_start_at_a_time() -> Iterator[None]:
    """Prevent other programs of this user from starting a trainer for the duration of a block.

    Raises:
        UserError: another program has been starting one for ``START_SECONDS``.
    """
    with _locked(settings_folder() / "starting.lock", START_SECONDS):
        yield


@contextmanager
def _locked(path: Path, patience: float) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a+b")
    except OSError as error:  # the settings folder is read-only, so nobody else can write there either
        log.warning("%s cannot be locked: %s", path, error)
        yield
        return
    with handle:
        if not lock_within(handle, patience):
            raise UserError(f"{path} is in use by a program that does not respond")
        yield
