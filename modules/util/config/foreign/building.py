"""Builds a config from the usable values of another program's file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.faults import show, translate, type_at, unwrap
from modules.util.config.foreign.Notes import Notes
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError, UserError

Config = TypeVar("Config", bound=BaseConfig)
Data = dict[str, Any]


def build(
    kind: type[Config], data: Data, where: str, notes: Notes, defaults: Mapping[str, Any] = MappingProxyType({})
) -> Config:
    """Build a config from the usable values. Numbers written as text are read; other faults are noted and
    skipped.

    Args:
        defaults: values of the other program in place of faulty ones; ours where it has none.

    Raises:
        UserError: skipping a faulty value did not remove the fault (a bug of this importer).
    """
    for _ in range(len(data) + 100):
        try:
            made = kind.model_validate(data)
        except ValidationError as error:
            details = error.errors(include_url=False)
            for detail, fault in zip(details, translate(error, kind, where), strict=True):
                _mend_or_drop(kind, data, detail["loc"], fault, notes, defaults)
            continue
        if isinstance(made, TrainConfig):
            made.rlhf_dpo_ref_mode = made.effective_dpo_ref_mode()
        return made
    raise UserError(f"the {kind.WHAT} cannot be imported", where or None)


def _mend_or_drop(
    kind: type[BaseConfig],
    data: Data,
    place: tuple[int | str, ...],
    fault: ConfigError,
    notes: Notes,
    defaults: Mapping[str, Any],
) -> None:
    container: Any = data
    theirs: Any = defaults
    known = [part for part in place if isinstance(part, str)]
    for part in known[:-1]:
        if not isinstance(container.get(part), dict):
            known = known[: known.index(part) + 1]
            break
        container = container[part]
        theirs = theirs.get(part) if isinstance(theirs, Mapping) else None
    name = known[-1]
    if name not in container:
        return
    converted = _converted(type_at(kind, place), container[name])
    if converted is not None:
        container[name] = converted
        return
    faulty, why = container.pop(name), "left at the default"
    default = theirs.get(name) if isinstance(theirs, Mapping) else None
    if isinstance(default, (bool, int, float, str)) and default != faulty:
        container[name], why = default, f"{show(default)} instead, the default there"
    notes.add(fault.field or name, faulty, f"{why}: {_in_short(fault.message)}", faulty=True)


def _converted(annotation: Any, value: Any) -> int | float | None:
    """Convert a number written as text or float to its proper type; None if that is impossible."""
    plain, _ = unwrap(annotation)
    if plain not in (int, float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if plain is float:
        return number if isinstance(value, str) else None
    return int(number) if number.is_integer() and not isinstance(value, int) else None


def _in_short(message: str) -> str:
    """The message of a fault without its list of choices."""
    return (
        "not one of its choices" if message.startswith("must be one of ") else message.partition(", not ")[0]
    )
