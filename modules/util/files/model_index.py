"""The index of a diffusers folder: which class each part is of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modules.util.errors import UserError
from modules.util.jsonio import read_json

NAMES = ("model_index.json", "modular_model_index.json")
"""Files that can hold it; the second one is that of modular pipelines, and counts where the first is missing."""


def index_file(folder: Path) -> Path | None:
    """The file with the index of a folder; ``None`` if it has none, or cannot be a path."""
    try:
        return next((folder / name for name in NAMES if (folder / name).is_file()), None)
    except (OSError, ValueError):
        # a name that is too long, or that no folder can have
        return None


def read_index(path: Path, limit: int | None = None) -> dict[str, Any]:
    """An index with a pair of library and class for each part, whichever of both files it is.

    Args:
        limit: bytes above which the file is not read.

    Raises:
        UserError: it cannot be read, or is not a JSON object.
    """
    index = read_json(path, "model index") if limit is None else read_json(path, "model index", limit)
    if not isinstance(index, dict):
        raise UserError(f"{path} is not a JSON object")
    return index if path.name == NAMES[0] else {name: _pair(value) for name, value in index.items()}


def _pair(value: object) -> object:
    """Library and class; parts of modular pipelines have a third entry, which says where to load them from, and may
    name both there alone.
    """
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], dict):
        return value
    named = value[:2] if all(value[:2]) else value[2].get("type_hint")
    return named if isinstance(named, list) else [None, None]
