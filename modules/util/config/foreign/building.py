"""Builds a config from the usable values of another program's file."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.faults import translate, type_at, unwrap
from modules.util.config.foreign.Notes import Notes
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError, UserError

Config = TypeVar("Config", bound=BaseConfig)
Data = dict[str, Any]


def build(kind: type[Config], data: Data, where: str, notes: Notes) -> Config:
    """Build a config from the usable values. Numbers written as text are read; other faults are noted and
    skipped.

    Raises:
        UserError: skipping a faulty value did not remove the fault (a bug of this importer).
    """
    for _ in range(len(data) + 100):
        try:
            made = kind.model_validate(data)
        except ValidationError as error:
            details = error.errors(include_url=False)
            for detail, fault in zip(details, translate(error, kind, where), strict=True):
                _mend_or_drop(kind, data, detail["loc"], fault, notes)
            continue
        if isinstance(made, TrainConfig):
            made.rlhf_dpo_ref_mode = made.effective_dpo_ref_mode()
        return made
    raise UserError(f"the {kind.WHAT} cannot be imported", where or None)


def _mend_or_drop(
    kind: type[BaseConfig], data: Data, place: tuple[int | str, ...], fault: ConfigError, notes: Notes
) -> None:
    container: Any = data
    known = [part for part in place if isinstance(part, str)]
    for part in known[:-1]:
        if not isinstance(container.get(part), dict):
            known = known[: known.index(part) + 1]
            break
        container = container[part]
    name = known[-1]
    if name not in container:
        return
    converted = _converted(type_at(kind, place), container[name])
    if converted is None:
        why = f"left at the default: {_in_short(fault.message)}"
        notes.add(fault.field or name, container.pop(name), why, faulty=True)
    else:
        container[name] = converted


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
