"""Files of results that a person names on a command line. One that holds anything else is never replaced."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from modules.util.errors import DataError, UserError
from modules.util.files.OpenFolder import read_plain
from modules.util.jsonio import parse_json, read_json
from modules.util.owned_files import Owned, shown

Check = Callable[[Path], bool]
"""Returns whether an existing file holds results of a kind. May raise ``UserError`` or ``OSError`` instead."""

_HEAD = 1 << 20


def check_result_file(path: Path, option: str, is_result: Check) -> None:
    """Check that results may be written to a file. Call it before the work, and again before writing.

    Args:
        option: the option that names the file, for the error.
        is_result: whether an existing file holds results of the same command.

    Raises:
        UserError: it is a folder or a device, it holds something else, or its folder cannot be written.
    """
    if not path.name:
        raise DataError("the name of a file is empty", option, "give a file name")
    Owned(path.parent, local=True).check_writable(path.name)
    check_result_folder(path.parent, option)
    # an empty file behind a link is not free: the link may be /dev/stdout, which a shell leads to a new file
    if not path.exists() or (path.is_file() and not path.is_symlink() and not path.stat().st_size):
        return
    try:
        fits = path.is_file() and is_result(path)
    except (UserError, OSError):
        fits = False
    if not fits:
        raise DataError(
            f"{shown(path)} already exists and does not hold results of this command: it is left as it is",
            option,
            "choose another name, or move the existing file away",
        )


def check_result_folder(folder: Path, option: str) -> None:
    """Check that files can be written into a folder, which need not exist. Call it before the work.

    Raises:
        DataError: it, or what it is to be made in, is not a folder or cannot be written.
    """
    place = folder.absolute()
    # a drive of Windows may be missing too
    found = next((one for one in (place, *place.parents) if os.path.lexists(one)), Path(place.anchor))
    if not found.is_dir() or not os.access(found, os.W_OK | os.X_OK):
        why = "cannot be written" if found.is_dir() else "is not a folder"
        raise DataError(f"{shown(found)} {why}", option, "choose another folder")


def json_with(*names: str) -> Check:
    """Return a check for a JSON object with these names, or a list of such objects."""

    def check(path: Path) -> bool:
        found = read_json(path)
        rows = found if isinstance(found, list) else [found]
        return all(isinstance(row, dict) and set(names) <= row.keys() for row in rows)

    return check


def rows_with(*names: str) -> Check:
    """Return a check for a JSON list with one object on each line, of which the first has these names."""

    def check(path: Path) -> bool:
        # lines end as they do in text files of this system
        first, *rows = (line.rstrip() for line in read_plain(path, _HEAD).split(b"\n", 2)[:2])
        if first != b"[" or not rows:
            return first == b"[]"
        row = parse_json(rows[0].removesuffix(b","), "first row")
        return isinstance(row, dict) and set(names) <= row.keys()

    return check


def text_with(mark: str) -> Check:
    """Return a check for a text file with a mark near its beginning."""
    return lambda path: mark.encode() in read_plain(path, _HEAD)
