"""Adapter files with strengths, as command line arguments."""

from __future__ import annotations

from pathlib import Path

from modules.util.errors import ConfigError

MAX_STRENGTH = 10.0


def named_adapters(text: str, field: str, folders: bool = False) -> list[tuple[Path, float]]:
    """Parse ``a.safetensors=0.5; b.safetensors`` as files and strengths. The default strength is 1.

    Args:
        field: the field to correct, for errors.
        folders: whether folders are accepted too.

    Raises:
        ConfigError: no file is given, one does not exist, or a strength is too large.
    """
    found = []
    pieces = [text] if Path(text.strip()).exists() else text.split(";")
    for piece in filter(None, map(str.strip, pieces)):
        name, sign, number = piece.rpartition("=")
        try:
            path, strength = (Path(name), float(number)) if sign else (Path(piece), 1.0)
        except ValueError:
            path, strength = Path(piece), 1.0
        if not -MAX_STRENGTH <= strength <= MAX_STRENGTH:
            raise ConfigError(f"{strength} is not between -10 and 10", field)
        if not (path.is_file() or (folders and path.is_dir())):
            raise ConfigError(f"{path} does not exist", field, "check the path; files are separated by ;")
        found.append((path, strength))
    if not found:
        raise ConfigError("no file is given", field, "a.safetensors=0.5; b.safetensors")
    return found
