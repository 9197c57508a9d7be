"""Lists of configs in files of their own: concepts and samples."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from modules.util.config.BaseConfig import VERSION_KEY, BaseConfig
from modules.util.config.faults import raise_all
from modules.util.errors import ConfigError, UserError, UserErrors
from modules.util.jsonio import read_json, write_json

_FOREIGN = {"concept_stats", "frames", "sample_inpainting"}
"""Keys that identify OneTrainer's lists."""

Item = TypeVar("Item", bound=BaseConfig)


def load_list(
    kind: type[Item],
    source: str | os.PathLike[str] | Sequence[Any],
    base_dir: str | os.PathLike[str] | None,
    field: str,
    what: str,
) -> list[Item]:
    """Read a list of configs from a JSON file or plain data. Every fault of every item is reported.

    Args:
        source: path of the file, or the list.
        base_dir: folder that paths are relative to; defaults to the current folder.
        field: name of the list in errors.
        what: what errors call the file.

    Raises:
        ConfigError: the data is not a list.
        UserErrors: the faults of its items.
    """
    if isinstance(source, (str, os.PathLike)):
        path = Path(base_dir or "") / source
        data = read_json(path, what)
        where = str(path)
    else:
        data, where = list(source), ""
    if not isinstance(data, list):
        raise ConfigError("must be a list [...]", field, f"{where} is not a {what}" if where else None)
    _refuse_foreign(kind, data, field, what)
    made: list[Item] = []
    faults: list[UserError] = []
    for index, item in enumerate(data):
        if isinstance(item, kind):
            made.append(item)
            continue
        try:
            made.append(kind.from_dict(item, f"{field}[{index}]"))
        except UserErrors as several:
            faults.extend(several.errors)
        except UserError as error:
            faults.append(error)
    raise_all(faults, f"the {what} {where} has {len(faults)} faults".replace("  ", " "))
    return made


def _refuse_foreign(kind: type[BaseConfig], data: Sequence[Any], field: str, what: str) -> None:
    """Raise a single error for a list of another program or a newer version, instead of one per item."""
    for item in data:
        if not isinstance(item, Mapping):
            continue
        version = item.get(VERSION_KEY, 0)
        if (isinstance(version, int) and version > kind.VERSION) or not _FOREIGN.isdisjoint(item):
            raise ConfigError(
                f"the {what} was written by another program or by a newer version of this program",
                field,
                "convert lists made by OneTrainer with scripts/import_config.py",
            )


def save_list(items: Sequence[BaseConfig], path: str | os.PathLike[str]) -> None:
    """Write a list of configs as JSON, atomically."""
    write_json(path, [item.to_dict() for item in items])
