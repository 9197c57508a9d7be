"""Changes single values by ``name=value`` texts, and merges partial configs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from pydantic import BaseModel

from modules.util.config.faults import (
    item_type,
    join_place,
    no_such_setting,
    older_fields,
    type_at,
    unwrap,
)
from modules.util.display import counted
from modules.util.errors import ConfigError
from modules.util.owned_files import shown

_INDEX = re.compile(r"\[(\d{1,6})\]")


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``above`` over ``below``: objects are merged key by key, everything else is replaced."""
    made = dict(below)
    for key, value in above.items():
        old = made.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        made[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return made


def override(
    model: type[BaseModel], data: Mapping[str, Any], overrides: Sequence[str]
) -> tuple[dict[str, Any], list[ConfigError]]:
    """Apply ``a.b=v`` texts to a copy of ``data`` in order. Returns the copy and the faults.

    Args:
        model: the config class, which determines how a value is read: text and choices literally, everything
            else as JSON (``true``, ``3e-5``, ``null``, ``[1, 2]``).
        data: plain config data; missing objects are created, missing list items are an error.
        overrides: ``learning_rate=1e-5``, ``unet.train=false``, ``concepts[0].path=images`` (or
            ``concepts.0.path=images``).
    """
    made: dict[str, Any] = json.loads(json.dumps(data))
    faults: list[ConfigError] = []
    for text in overrides:
        try:
            _apply(model, made, text)
        except ConfigError as error:
            faults.append(error)
    return made, faults


def _apply(model: type[BaseModel], data: dict[str, Any], text: str) -> None:
    name, equals, raw = text.partition("=")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError("contains a character that cannot be stored", shown(name)) from None
    place = parse_place(name.strip())
    if not equals or not place:
        raise ConfigError(
            f"{text!r} is not a setting", "--set", "write name=value, such as learning_rate=1e-5"
        )
    container: Any = data
    for depth, part in enumerate(place):
        wanted = _step_into(model, place[:depth], container, part)
        if depth == len(place) - 1:
            container[wanted] = read_value(type_at(model, (*place[:-1], wanted)), raw)
            return
        if isinstance(container, dict) and container.get(wanted) is None:
            _refuse_missing_list(model, place[: depth + 1])
            container[wanted] = {}
        container = container[wanted]


def parse_place(name: str) -> tuple[str, ...]:
    """``a.b[0].c`` -> ``("a", "b", "0", "c")``; empty if it is not a path."""
    parts = _INDEX.sub(r".\1", name).split(".")
    return tuple(parts) if all(parts) else ()


def _step_into(model: type[BaseModel], before: tuple[str, ...], container: Any, part: str) -> Any:
    """The key of ``part`` in ``container``; raises ConfigError if it does not exist."""
    place = join_place(before)
    field = join_place((*before, part))
    if isinstance(container, list):
        if not part.isdigit() or int(part) >= len(container):
            raise ConfigError(f"{place} has {counted(len(container), 'item')}, counted from 0", field)
        return int(part)
    if not isinstance(container, dict):
        raise ConfigError(f"{place} is a single value and has no parts", field)
    owner, _ = unwrap(type_at(model, before))
    known = isinstance(owner, type) and issubclass(owner, BaseModel)
    if known and part not in owner.model_fields and part not in older_fields(owner):
        raise no_such_setting(part, field, owner.model_fields)
    return part


def _refuse_missing_list(model: type[BaseModel], place: tuple[str, ...]) -> None:
    plain, _ = unwrap(type_at(model, place))
    if item_type(plain) is not None and getattr(plain, "__origin__", None) is list:
        raise ConfigError(
            "the config does not hold this list itself", join_place(place), "change the file it names instead"
        )


def read_value(annotation: Any, raw: str) -> Any:
    """Convert a typed value to plain data: text and choices literally, everything else as JSON if valid."""
    plain, optional = unwrap(annotation)
    if optional and raw.strip() in ("null", ""):
        return None
    if plain is str:
        return _unquoted(raw)
    if isinstance(plain, type) and issubclass(plain, Enum):
        return _unquoted(raw).strip()
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        if item_type(plain) is not None and getattr(plain, "__origin__", None) is list:
            return [word.strip() for word in raw.split(",")]
        return raw.strip()


def _unquoted(raw: str) -> str:
    """The text itself, or without quotes if it is a JSON string."""
    if len(raw) >= 2 and raw[0] == raw[-1] == '"':
        try:
            value = json.loads(raw)
        except ValueError:
            return raw
        return str(value)
    return raw
