"""Names with typed values, as a person enters them. No Tk here."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from modules.ui.texts import lists as words
from modules.ui.texts.lists import JSON, NOTHING, NUMBER, SWITCH, TEXT, WHOLE
from modules.util.errors import UserError

Scalar = bool | int | float | str | None
Plain = Scalar | list[Any] | dict[str, Any]
Place = tuple[int, Literal["name", "value"]]
KINDS = (NUMBER, WHOLE, SWITCH, TEXT, NOTHING)
"""Kinds of single values. ``JSON`` is added if lists and tables are allowed too."""
_ON, _OFF = ("on", "true", "yes"), ("off", "false", "no")


@dataclass(frozen=True)
class ParameterText:
    """One parameter as typed: name, one of ``KINDS``, value."""

    name: str = ""
    kind: str = NUMBER
    text: str = ""


def as_texts(values: Mapping[str, Plain]) -> list[ParameterText]:
    """Values as parameters to show."""
    return [ParameterText(name, *_kind_and_text(value)) for name, value in values.items()]


def _kind_and_text(value: Plain) -> tuple[str, str]:
    if value is None:
        return NOTHING, ""
    if isinstance(value, bool):
        return SWITCH, "on" if value else "off"
    if isinstance(value, int):
        return WHOLE, str(value)
    if isinstance(value, (list, dict)):
        return JSON, json.dumps(value, ensure_ascii=False)
    return (NUMBER, repr(value)) if isinstance(value, float) else (TEXT, value)


def read_value(kind: str, text: str) -> Plain:
    """Parse a text as a value.

    Raises:
        UserError: the text is not a value of that kind.
    """
    plain = text.strip()
    if kind == TEXT:
        return text
    if kind == NOTHING:
        return None
    if kind == JSON:
        return _read_json(plain)
    if kind == SWITCH:
        if plain.lower() in (*_ON, *_OFF):
            return plain.lower() in _ON
        raise UserError(f"{plain!r} is neither on nor off")
    try:
        value = int(plain) if kind == WHOLE else float(plain)
    except ValueError:
        raise UserError(f"{plain!r} is not a {kind}" if plain else f"enter a {kind}") from None
    if math.isnan(value):
        raise UserError("NaN is not allowed: enter a number")
    return value


def _read_json(text: str) -> Plain:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, (list, dict)):
        raise UserError(f'{text!r} is neither a list like [1, 0.5] nor a table like {{"a": 1}}')
    return value


def read_texts(
    rows: Sequence[ParameterText], taken: Mapping[str, str]
) -> tuple[dict[str, Plain], dict[Place, str]]:
    """The values of rows, and the faults by field. Empty rows are left out.

    Args:
        taken: names that cannot be used, with the reason.
    """
    made: dict[str, Plain] = {}
    faults: dict[Place, str] = {}
    for index, row in enumerate(rows):
        name = row.name.strip()
        if not name and not row.text.strip():
            continue
        if not name:
            faults[index, "name"] = words.NO_NAME
        elif not name.isidentifier():
            faults[index, "name"] = words.BAD_NAME
        elif name in taken:
            faults[index, "name"] = taken[name]
        elif name in made:
            faults[index, "name"] = words.TWICE.format(name=name)
        try:
            made[name] = read_value(row.kind, row.text)
        except UserError as error:
            faults[index, "value"] = error.message
    return made, faults
