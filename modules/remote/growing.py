"""Append-only local files that two commands may write at once: one that follows a run and one that fetches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from modules.runner.RunDirectory import MIRROR
from modules.util.errors import UserError, refused_as
from modules.util.files.locking import lock_within
from modules.util.owned_files import Owned, shown

STATE = MIRROR
_PATIENCE, _STEP = 30.0, 0.02


@contextmanager
def alone(owned: Owned) -> Iterator[None]:
    """Prevent other commands from writing to the mirror of a run for the duration of a block.

    Raises:
        UserError: another command does not stop writing.
    """
    owned.folder(STATE)
    with owned.plain_file(f"{STATE}/lock").open("a+b") as handle:
        if not lock_within(handle, _PATIENCE, _STEP):
            raise UserError(
                f"another command is writing to {shown(owned.root)}", hint="wait for it, or stop it"
            )
        yield


def append_at(owned: Owned, name: str, offset: int, data: bytes) -> int:
    """Append bytes from ``offset`` of the remote file, except those another command has added. Returns the
    new size.

    Raises:
        UserError: bytes between the end of the file and ``offset`` are missing, or the disk is full.
    """
    with alone(owned):
        path = owned.plain_file(name)
        size = path.stat().st_size if path.exists() else 0
        if size < offset:
            raise UserError(f"{shown(path)} became shorter", hint="start again")
        new = data[size - offset :]
        with refused_as(f"{shown(path)} cannot be written", hint="free some space, then start again"):
            if new or not path.exists():
                owned.append(name, new)
        return size + len(new)
