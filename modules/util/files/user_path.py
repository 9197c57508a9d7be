"""Paths as people write them."""

from __future__ import annotations

import os
from pathlib import Path

from modules.util.errors import UserError
from modules.util.owned_files import shown


def user_path(text: str | os.PathLike[str], field: str | None = None) -> Path:
    """A path in which ``~`` is the folder of the user and ``~name`` that of another one.

    Args:
        field: the setting that holds the text, for errors.

    Raises:
        UserError: this computer has no such user.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        user = Path(text).parts[0]
        raise UserError(
            f"{shown(os.fspath(text))!r} cannot be used: this computer has no user {user[1:]!r}",
            field,
            "write the whole path; ~ alone, before the first slash, is your own folder",
        ) from error
