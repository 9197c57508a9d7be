"""Deletes runs: a run's folder is moved to a trash next to it, from which it can be restored."""

from __future__ import annotations

import time
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from modules.runner.RunDirectory import BROUGHT_ALONG, RunDirectory
from modules.util.errors import UserError, UserErrors
from modules.util.owned_files import TEMPORARY, Owned

TRASH = ".tastemaker-trash"
OWN_NAMES = (
    "config.json", "events.jsonl", "commands", "log.txt", "samples", "rollouts", "backup", "backup-before-*", "best",
    "save", "strengths", "votes", "tensorboard", "launch.json", "process.json", "run.lock",
    BROUGHT_ALONG,
)  # fmt: skip
"""Contents of a run folder (docs/runs.md). A folder with anything else is not deleted."""
FORMER_SETTINGS = "config.before-*.json"
"""Settings of a person that the first run has put aside. They may go to the trash, but are never deleted."""
DESKTOP_FILES = (".ds_store", "._*", ".directory", "desktop.ini", "thumbs.db")
"""Files that file managers write into every folder, in lower case."""


def delete_run(folder: Path) -> Path:
    """Move a run's folder to the trash next to it. Returns its new location.

    Raises:
        UserError: it is running, is part of a project, or contains anything that this program did not write.
    """
    run = RunDirectory(folder)
    if run.path.is_symlink() or not run.events_path.is_file() or not run.config_path.is_file():
        raise UserError(f"{run.path} is not the folder of a run", hint="it is left as it is")
    if run.is_live():
        raise UserError(f"training is running in {run.path}", hint="stop it first")
    if (run.path.parent.parent / "project.json").is_file():
        raise UserError(
            f"{run.path} belongs to a round of a project", hint="train the round again to replace it"
        )
    check_only_own(run.path, for_good=False)
    name = f"{TRASH}/{run.path.name}-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**9:09d}"
    owned = Owned(run.path.parent, local=True)
    with run.undisturbed() as free:
        if not free:
            raise UserError(f"training is running in {run.path}", hint="stop it first")
        owned.move(run.path.name, name)
    return owned.path(name)


def check_only_own(folder: Path, for_good: bool = True) -> None:
    """Check that a run's folder contains only what this program or a file manager wrote.

    Args:
        for_good: whether the folder is to be deleted for good. Then settings of a person are refused too.

    Raises:
        UserError: it contains something else.
    """
    own = (*OWN_NAMES, TEMPORARY, FORMER_SETTINGS)
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    foreign = [entry.name for entry in entries if not _fits(entry.name, own) and not _is_of_desktop(entry)]
    if foreign:
        raise UserError(
            f"{folder} also holds {', '.join(foreign[:5])}, which is not part of a run",
            hint="move these files elsewhere, then do this again",
        )
    if for_good:
        _check_no_settings(folder)


def _check_no_settings(folder: Path) -> None:
    """Raise ``UserError`` if a run's folder contains settings of a person."""
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    brought_along = (RunDirectory(folder).config_path.name,) if BROUGHT_ALONG in names else ()
    settings = [name for name in names if _fits(name, (FORMER_SETTINGS, *brought_along))]
    if settings:
        raise UserError(
            f"{folder} would be deleted for good together with {', '.join(settings[:5])}",
            hint=f"{settings[0]} holds settings of yours: move it elsewhere, then do this again",
        )


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _is_of_desktop(entry: Path) -> bool:
    return _fits(entry.name.lower(), DESKTOP_FILES) and entry.is_file() and not entry.is_symlink()


def trashed_runs(parents: Iterable[Path]) -> list[Path]:
    """The runs in the trash next to the runs of these folders."""
    places = [parent / TRASH for parent in dict.fromkeys(parents)]
    found = [
        run
        for place in places
        if place.is_dir() and not place.is_symlink()
        for run in sorted(place.iterdir())
    ]
    return [run for run in found if not run.is_symlink() and RunDirectory(run).events_path.is_file()]


def empty_trash(runs: Iterable[Path]) -> None:
    """Delete runs in the trash for good. Those that hold settings of a person stay there.

    Args:
        runs: runs from ``trashed_runs``.

    Raises:
        UserError: there are such runs. The others were deleted.
    """
    errors: list[UserError] = []
    for run in runs:
        try:
            _check_no_settings(run)
        except UserError as error:
            errors.append(error)
        else:
            Owned(run.parent.parent, local=True).remove_tree(f"{TRASH}/{run.name}")
    if errors:
        raise errors[0] if len(errors) == 1 else UserErrors(errors)


def restore_run(trashed: Path, folder: Path) -> None:
    """Restore a deleted run.

    Args:
        trashed: the location returned by ``delete_run``.

    Raises:
        UserError: the original name is taken, or the run is gone.
    """
    try:
        Owned(folder.parent, local=True).move(f"{TRASH}/{trashed.name}", folder.name)
    except FileNotFoundError as error:
        raise UserError(f"{trashed} no longer exists") from error
