"""The index of a diffusers folder, which maps each part to its class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modules.util.errors import UserError
from modules.util.jsonio import read_json

NAMES = ("model_index.json", "modular_model_index.json")
"""Possible index files. The second, for modular pipelines, is used if the first is missing."""


def index_file(folder: Path) -> Path | None:
    """The index file of a folder; ``None`` if there is none, or the folder is not a valid path."""
    try:
        return next((folder / name for name in NAMES if (folder / name).is_file()), None)
    except (OSError, ValueError):
        # a name that is too long, or not valid for a folder
        return None


def read_index(path: Path, limit: int | None = None) -> dict[str, Any]:
    """Read either kind of index as a pair of library and class for each part.

    Args:
        limit: maximum size in bytes.

    Raises:
        UserError: it is unreadable or not a JSON object.
    """
    index = read_json(path, "model index") if limit is None else read_json(path, "model index", limit)
    if not isinstance(index, dict):
        raise UserError(f"{path} is not a JSON object")
    return index if path.name == NAMES[0] else {name: _pair(value) for name, value in index.items()}


def _pair(value: object) -> object:
    """Library and class. Parts of modular pipelines have a third entry with the location to load from, and
    may give both only there.
    """
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], dict):
        return value
    named = value[:2] if all(value[:2]) else value[2].get("type_hint")
    return named if isinstance(named, list) else [None, None]
