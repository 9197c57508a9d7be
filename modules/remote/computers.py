"""The other computers that were used before, so that nobody types an address twice. It holds no secret."""

from __future__ import annotations

from collections.abc import Sequence

from modules.util.config.remote.RemoteConfig import RemoteConfig
from modules.util.errors import DataError, refused_as
from modules.util.files.user_folder import settings_folder
from modules.util.jsonio import read_json, write_json

NAME = "remote-computers.json"
VERSION = 1
MAX_BYTES, MAX_COMPUTERS = 1 << 18, 50


def saved() -> list[RemoteConfig]:
    """All saved computers, the one used last first.

    Raises:
        UserError: the list is damaged.
    """
    path = settings_folder() / NAME
    if not path.exists():
        return []
    data = read_json(path, "list of computers", MAX_BYTES)
    listed = data.get("computers") if isinstance(data, dict) and data.get("version") == VERSION else None
    if not isinstance(listed, list):
        raise DataError(f"{path} is not a list of computers", hint="move the file away to begin a new list")
    return [RemoteConfig.from_dict(one, f"computers[{number}]") for number, one in enumerate(listed)]


def keep(remote: RemoteConfig) -> list[RemoteConfig]:
    """Put a computer at the top of the list, in place of an entry with the same address. Returns the list.

    Raises:
        UserError: the list is damaged, or not writable.
    """
    return _write([remote, *_without(remote)])


def forget(remote: RemoteConfig) -> list[RemoteConfig]:
    """Remove a computer from the list. Returns the list.

    Raises:
        UserError: the list is damaged, or not writable.
    """
    return _write(_without(remote))


def _without(remote: RemoteConfig) -> list[RemoteConfig]:
    return [one for one in saved() if one.address() != remote.address()]


def _write(listed: Sequence[RemoteConfig]) -> list[RemoteConfig]:
    made = list(listed[:MAX_COMPUTERS])
    path = settings_folder() / NAME
    with refused_as(
        f"{path} cannot be written", hint="free some space, or change the permissions of its folder"
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"version": VERSION, "computers": [one.to_dict() for one in made]})
    return made
