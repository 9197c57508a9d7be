"""Lists of configs in files of their own: concepts and samples."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.faults import raise_all
from modules.util.errors import ConfigError, UserError, UserErrors
from modules.util.jsonio import read_json, write_json

Item = TypeVar("Item", bound=BaseConfig)


def load_list(
    kind: type[Item],
    source: str | os.PathLike[str] | Sequence[Any],
    base_dir: Path | None,
    field: str,
    what: str,
) -> list[Item]:
    """Read a list of configs from a JSON file or from plain data; every fault of every item is reported.

    Args:
        kind: the class of the items.
        source: path of the file, or the list.
        base_dir: folder a relative path starts from.
        field: name of the list in errors.
        what: how to call the file in errors.
    """
    if isinstance(source, (str, os.PathLike)):
        path = (base_dir or Path()) / source
        data = read_json(path, what)
        where = str(path)
    else:
        data, where = list(source), ""
    if not isinstance(data, list):
        raise ConfigError("must be a list [...]", field, f"{where} is not a {what}" if where else None)
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


def save_list(items: Sequence[BaseConfig], path: str | os.PathLike[str]) -> None:
    """Write a list of configs as JSON, atomically."""
    write_json(path, [item.to_dict() for item in items])
