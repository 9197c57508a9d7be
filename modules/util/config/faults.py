"""Faults of a config as texts: each with its field, value, reason and likely intent."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Container, Iterable, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from modules.util.errors import ConfigError, UserError, UserErrors

Place = tuple[int | str, ...]
LONGEST = 100
"""Maximum length of a name for which a known one is suggested."""
MOST_STRANGERS = 20
"""Maximum number of unknown names of an object that are reported one by one."""
_OTHERS = re.compile(r"\.\.\. and [\d,]+ more")


def raise_all(errors: Sequence[UserError], title: str = "") -> None:
    """Raise a single fault as it is, several as ``UserErrors``. Without faults, do nothing."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise UserErrors(errors, title)


def join_place(place: Iterable[int | str], prefix: str = "") -> str:
    """``("concepts", 0, "path")`` -> ``concepts[0].path``."""
    text = prefix
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def did_you_mean(wrong: str, known: Iterable[str], listed: int = 8) -> str:
    """A hint: the nearest known name, or all known names if there are few."""
    names = sorted(known)
    lowered = {name.lower(): name for name in names}
    # a name much longer than every known one resembles none
    near = difflib.get_close_matches(wrong[:LONGEST].lower(), list(lowered), n=1, cutoff=0.6)
    if near:
        return f"did you mean {lowered[near[0]]!r}?"
    return f"known: {', '.join(names)}" if 0 < len(names) <= listed else ""


def show(value: Any, limit: int = 60) -> str:
    """A value as JSON, truncated."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 3] + "..."


def unwrap(annotation: Any) -> tuple[Any, bool]:
    """The type without ``| None`` and ``Annotated``, and whether None is allowed."""
    optional = False
    while True:
        origin = get_origin(annotation)
        if origin in (Union, UnionType):
            rest = [part for part in get_args(annotation) if part is not NoneType]
            optional = optional or len(rest) < len(get_args(annotation))
            if len(rest) != 1:
                return annotation, optional
            annotation = rest[0]
        elif hasattr(annotation, "__metadata__"):
            annotation = get_args(annotation)[0]
        else:
            return annotation, optional


def item_type(annotation: Any) -> Any | None:
    """The type of the items of ``list[T]`` or of the values of ``dict[str, T]``, else None."""
    plain, _ = unwrap(annotation)
    if get_origin(plain) in (list, dict):
        return get_args(plain)[-1]
    return None


def few_strangers(data: dict[str, Any], known: Container[str]) -> dict[str, Any]:
    """``data`` with at most ``MOST_STRANGERS`` unknown names, and one extra name that counts the others.

    A file may hold millions of them, and each costs a search for the intended name.
    """
    strangers = [name for name in data if name not in known]
    if len(strangers) == MOST_STRANGERS + 1 and _OTHERS.fullmatch(strangers[-1]):
        return data  # they were counted before
    dropped = set(strangers[MOST_STRANGERS:])
    if not dropped:
        return data
    made = {name: value for name, value in data.items() if name not in dropped}
    return {**made, f"... and {len(dropped):,} more": None}


def older_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The settings of a config class that were replaced by others but are still read."""
    older: type[BaseModel] | None = getattr(model, "OLDER_NAMES", None)
    return older.model_fields if older is not None else {}


def type_at(model: type[BaseModel], place: Place) -> Any | None:
    """The declared type at a location, as far as there is one."""
    current: Any = model
    for part in place:
        plain, _ = unwrap(current)
        if isinstance(plain, type) and issubclass(plain, BaseModel):
            field = plain.model_fields.get(str(part)) or older_fields(plain).get(str(part))
            if field is None:
                return None
            current = field.annotation
        else:
            current = item_type(plain)
            if current is None:
                return None
    return current


def describe_type(annotation: Any) -> str:
    """A type in words, for "must be ..."."""
    plain, optional = unwrap(annotation)
    if isinstance(plain, type) and issubclass(plain, Enum):
        words = f"one of {', '.join(str(member.value) for member in plain)}"
    elif isinstance(plain, type) and issubclass(plain, BaseModel):
        words = "an object {...}"
    else:
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "text in quotes"}
        names |= {list: "a list [...]", dict: "an object {...}"}
        words = names.get(get_origin(plain) or plain, "of another kind")
    return f"{words}, or empty (null)" if optional else words


_LIMITS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "greater than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
    "multiple_of": ("multiple_of", "a multiple of"),
}


def _limit_text(number: Any) -> str:
    return f"{number:.12g}" if isinstance(number, float) else str(number)


REMOVED = {
    "attn_backend": "use the accelerator attention_backend: "
    '"acceleration": {"shared": [{"name": "attention_backend", "params": {"backend": "..."}}]}',
}
"""Removed settings, and their replacements."""


def no_such_setting(name: str, field: str | None, known: Iterable[str]) -> ConfigError:
    """The fault of an unknown setting name."""
    return ConfigError(
        "there is no such setting", field, REMOVED.get(name) or did_you_mean(name, known) or None
    )


def translate(error: ValidationError, model: type[BaseModel], prefix: str = "") -> list[ConfigError]:
    """Translate every finding of pydantic into a ``ConfigError`` about a location below ``prefix``."""
    return [_translate_one(detail, model, prefix) for detail in error.errors(include_url=False)]


def _translate_one(detail: ErrorDetails, model: type[BaseModel], prefix: str) -> ConfigError:
    place, kind, value = detail["loc"], detail["type"], detail["input"]
    context = detail.get("ctx", {})
    field = join_place(place, prefix) or None
    if kind == "extra_forbidden":
        owner, _ = unwrap(type_at(model, place[:-1]))
        known = owner.model_fields if isinstance(owner, type) and issubclass(owner, BaseModel) else ()
        return no_such_setting(str(place[-1]), field, known)
    if kind == "missing":
        return ConfigError("is missing", field)
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return ConfigError(f"must be {words} {_limit_text(context[name])}, not {show(value)}", field)
    if kind == "finite_number":
        return ConfigError(f"must be a finite number, not {value}", field)
    if kind in ("too_short", "string_too_short"):
        return ConfigError("must not be empty", field)
    if kind in ("nan", "setting"):
        return ConfigError(detail["msg"], field, context.get("hint"))
    if kind == "value_error":
        return ConfigError(f"{context.get('error', detail['msg'])}", field)
    wanted = type_at(model, place)
    plain, _ = unwrap(wanted)
    hint = ""
    if isinstance(plain, type) and issubclass(plain, Enum) and isinstance(value, str):
        hint = did_you_mean(value, [str(member.value) for member in plain], listed=0)
    reason = describe_type(wanted) if wanted is not None else f"of another kind ({detail['msg']})"
    return ConfigError(f"must be {reason}, not {show(value)}", field, hint or None)
