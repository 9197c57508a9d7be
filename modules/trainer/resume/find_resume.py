"""The start of a run: at a backup, or from the beginning with the previous run's backups moved aside."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from modules.trainer.distributed import Processes
from modules.trainer.resume.checkpoint import Snapshot, find_backup, list_backups, read_backup
from modules.util.errors import DataError
from modules.util.owned_files import Owned

Warn = Callable[[str], None]


def find_resume(folder: Path, processes: Processes, warn: Warn) -> tuple[Path, Snapshot] | None:
    """The newest usable backup, the same in every process; ``None`` if there is none yet.

    Raises:
        DataError: there are backups, but none is usable.
    """
    path, problems = find_backup(folder) if processes.first else (None, [])
    for problem in problems:
        warn(problem)
    told = processes.broadcast(None if path is None else str(path))
    if told is None:
        if processes.first and list_backups(folder):
            raise DataError(
                f"none of the backups in {folder} can be used",
                hint="start a new run without continue_last_backup",
            )
        warn(f"there is no backup in {folder} yet: the run starts from the beginning")
        return None
    path = Path(told)
    return path, read_backup(path)


def put_aside(folder: Path, warn: Warn) -> None:
    """Move the backups of the previous run aside when a new one begins. They stay in place until then,
    because a run that fails or is stopped while loading has not begun.
    """
    if list_backups(folder):
        aside = folder.with_name(f"{folder.name}-before-{time.strftime('%Y-%m-%d_%H-%M-%S')}")
        Owned(folder.parent, local=True).move(folder.name, aside.name)
        warn(
            f"this is a new run; the backups of the previous one are now in {aside}. To resume that one, give the "
            f"folder its old name, {folder.name}, and set continue_last_backup"
        )
