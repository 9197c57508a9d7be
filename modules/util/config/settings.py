"""The fields of a config as a flat list, for forms, docs and searches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from typing import Any, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen, MultipleOf
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.faults import item_type, raise_all, translate, type_at, unwrap
from modules.util.config.overrides import parse_place, read_value
from modules.util.config.TrainConfig import SECTIONS, TrainConfig

MOST_LABELS = 4
"""Maximum number of alternatives that a condition in words lists."""
Kind = Literal["bool", "int", "float", "text", "choice", "choices", "list", "table"]


@dataclass(frozen=True)
class Limits:
    """Limits of a number; None means no limit."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    multiple_of: float | None = None
    min_length: int | None = None

    def text(self) -> str:
        """``0 to 1``, ``above 0``, ``0 to below 0.5``; empty without limits."""
        low = _number_text(self.ge) if self.ge is not None else None
        high = _number_text(self.le) if self.le is not None else None
        if self.gt is not None:
            low = f"above {_number_text(self.gt)}"
        if self.lt is not None:
            high = f"below {_number_text(self.lt)}"
        if low is not None and high is not None:
            words = f"{low} to {high}"
        elif low is not None:
            words = low if low.startswith("above") else f"{low} or more"
        else:
            words = high or ""
            words = words if not words or words.startswith("below") else f"{words} or less"
        step = f"a multiple of {_number_text(self.multiple_of)}" if self.multiple_of is not None else ""
        return ", ".join(part for part in (words, step) if part)


def _number_text(number: float) -> str:
    return f"{number:.16g}"


@dataclass(frozen=True)
class Choice:
    """One value of a choice: as stored, and as displayed."""

    value: str
    label: str


@dataclass(frozen=True)
class Setting:
    """A field of a config.

    Args:
        path: its location (``unet.learning_rate``), as used by overrides and errors.
        title, tip: its label and its description.
        section: page of the program, empty outside ``TrainConfig``.
        group: box on that page.
        kind: the kind of its values; ``choice`` is one of ``choices``, ``choices`` a list of them; ``list``
            and
            ``table`` (names to values) have no row in a form.
        optional: whether it may be empty (null).
        default: as plain data, as in files.
        limits: allowed numbers.
        visible: when it is shown, see ``is_visible``; empty means always.
        widget: hint for the form (``file``, ``folder``, ``save_file``, ``multiline``, ``device``, ``layers``,
            ``model``, ``reward``, ``accelerator``, ``bound``: empty: no bound, ``inherited``: empty: as in the
            run).
        hidden: never a row of a form.
        first: whether it is one of the few of its page that matter in a first run.
        cost: ``value`` if every other value makes an optimizer step take another time, ``switch`` if only
            whether it
            is on does, else empty.
    """

    path: str
    title: str
    tip: str
    section: str
    group: str
    kind: Kind
    choices: tuple[Choice, ...]
    optional: bool
    default: Any
    limits: Limits
    visible: str
    widget: str
    hidden: bool
    first: bool
    cost: str

    @cached_property
    def texts(self) -> str:
        """All its texts in lower case, one per line; a search that finds nothing here finds nothing at all."""
        choices = [text for choice in self.choices for text in (choice.label, choice.value)]
        texts = (self.title, self.path, self.group, self.section, *choices, self.tip)
        return "\n".join(texts).lower()


@cache
def iter_settings(model: type[BaseConfig]) -> tuple[Setting, ...]:
    """All fields of a config class and its parts, in display order.

    Fields added by a subclass of ``TrainConfig`` come last, under the subclass's ``SECTION``.
    """
    if not issubclass(model, TrainConfig):
        return tuple(_settings_of(model, "", "", ""))
    known = frozenset(TrainConfig.model_fields)
    found = [one for kind in SECTIONS for one in _settings_of(kind, "", section_name(kind), "")]
    return (*found, *_settings_of(model, "", section_name(model), "", known))


def section_name(model: type[BaseConfig]) -> str:
    """The title of a section's page; empty for a part of a section."""
    return str(getattr(model, "SECTION", ""))


def _settings_of(
    model: type[BaseConfig],
    prefix: str,
    section: str,
    group: str,
    leaving_out: frozenset[str] = frozenset(),
    outer: str = "",
) -> Iterator[Setting]:
    """The fields of a class; ``outer`` is the visibility rule of the enclosing object."""
    for name, field in model.model_fields.items():
        if name in leaving_out:
            continue
        path = f"{prefix}{name}"
        plain, _ = unwrap(field.annotation)
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        own_group = str(extra.get("group", "")) or group
        if isinstance(plain, type) and issubclass(plain, BaseConfig):
            rule = _both(outer, _absolute(str(extra.get("visible", "")), prefix))
            yield from _settings_of(plain, f"{path}.", section, field.title or own_group, outer=rule)
        else:
            yield _setting(path, prefix, field, extra, section, own_group, outer)


def _setting(
    path: str,
    prefix: str,
    field: FieldInfo,
    extra: dict[str, Any],
    section: str,
    group: str,
    outer: str,
) -> Setting:
    plain, optional = unwrap(field.annotation)
    kind, choices = _kind(plain)
    return Setting(
        path=path,
        title=field.title or path,
        tip=field.description or "",
        section=section,
        group=group,
        kind=kind,
        choices=choices,
        optional=optional,
        default=_plain_default(field),
        limits=_limits(field),
        visible=_both(outer, _absolute(str(extra.get("visible", "")), prefix)),
        widget=str(extra.get("widget", "")),
        hidden=bool(extra.get("hidden", False)),
        first=bool(extra.get("first", False)),
        cost=str(extra.get("cost", "")),
    )


def _kind(plain: Any) -> tuple[Kind, tuple[Choice, ...]]:
    if isinstance(plain, type) and issubclass(plain, Enum):
        return "choice", _choices(plain)
    names: dict[Any, Kind] = {bool: "bool", int: "int", float: "float", str: "text"}
    if plain in names:
        return names[plain], ()
    inner, _ = unwrap(item_type(plain))
    if isinstance(inner, type) and issubclass(inner, Enum):
        return "choices", _choices(inner)
    return ("table" if getattr(plain, "__origin__", None) is dict else "list"), ()


def _choices(kind: type[Enum]) -> tuple[Choice, ...]:
    return tuple(Choice(str(member.value), str(getattr(member, "label", member.value))) for member in kind)


def _plain_default(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, list):
        return [str(item.value) if isinstance(item, Enum) else item for item in value]
    return str(value.value) if isinstance(value, Enum) else value


def _limits(field: FieldInfo) -> Limits:
    found: dict[str, Any] = {}
    names = {Ge: "ge", Gt: "gt", Le: "le", Lt: "lt", MultipleOf: "multiple_of", MinLen: "min_length"}
    for item in field.metadata:
        name = names.get(type(item))
        if name:
            found[name] = getattr(item, name)
    return Limits(**found)


_CONDITION = re.compile(r"(!?)(\.?[a-z_0-9.]+)(?:=(.+))?")
_Condition = tuple[bool, str, str | None]
"""True if negated, the name of the setting, and its wanted values."""


def _absolute(rule: str, prefix: str) -> str:
    """Turn conditions on fields of the same object (``.train``) into conditions on full names."""
    parts = (part.strip() for part in rule.split(",")) if rule else ()
    return ",".join(re.sub(r"(^| or )(!?)\.", rf"\g<1>\g<2>{prefix}", part) for part in parts)


def _both(*rules: str) -> str:
    return ",".join(rule for rule in rules if rule)


def is_visible(rule: str, value_of: Callable[[str], Any]) -> bool:
    """Return whether a field with visibility ``rule`` is shown.

    Args:
        rule: conditions separated by commas: ``name``, ``!name``, ``name=A|B``, ``!name=A|B``, or several of
            these with `` or `` between them, one of which is enough.
        value_of: the current value (or choice, as text) at a path.
    """
    return not unmet(rule, value_of)


def unmet(rule: str, value_of: Callable[[str], Any]) -> list[str]:
    """The settings whose values hide a field with visibility ``rule``. Arguments as for ``is_visible``."""
    return [
        name
        for either in _conditions(rule)
        if all(_holds(value_of(name), wanted) is negated for negated, name, wanted in either)
        for _, name, _ in either
    ]


def visibility_in_words(rule: str, settings: Mapping[str, Setting]) -> str:
    """A visibility rule with the titles and labels that a person sees, such as ``TensorBoard is on``."""
    return " and ".join(_alternatives_in_words(either, settings) for either in _conditions(rule))


def _alternatives_in_words(either: Sequence[_Condition], settings: Mapping[str, Setting]) -> str:
    said = " or ".join(
        f"{settings[name].title} {_condition_in_words(settings[name], negated, wanted)}"
        for negated, name, wanted in either
    )
    return f"({said})" if len(either) > 1 else said


def _condition_in_words(setting: Setting, negated: bool, wanted: str | None) -> str:
    if wanted is not None:
        known = {choice.value: choice.label for choice in setting.choices}
        labels = [known.get(one, one) for one in wanted.split("|")]
        if len(labels) > MOST_LABELS:
            labels[MOST_LABELS:] = [f"{len(labels) - MOST_LABELS} others"]
        return ("is not " if negated else "is ") + " or ".join(labels)
    if setting.kind == "bool":
        return "is off" if negated else "is on"
    return "is not set" if negated else "is set"


def _conditions(rule: str) -> list[list[_Condition]]:
    """The conditions that must all hold, each as its alternatives."""
    return [[_condition(one, rule) for one in part.split(" or ")] for part in (rule.split(",") if rule else ())]


def _condition(text: str, rule: str) -> _Condition:
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{rule!r} is not a visibility rule")
    return bool(match[1]), match[2], match[3]


def _holds(value: Any, wanted: str | None) -> bool:
    if wanted is None:
        return bool(value)
    return str(value) in wanted.split("|")


def read_setting(model: type[BaseConfig], path: str, text: str) -> Any:
    """Parse and check a value that a person typed for a field.

    Args:
        path: path of the field (``unet.learning_rate``), not inside lists.
        text: as typed; empty means null if that is allowed.

    Raises:
        ConfigError: the field does not exist, or the value is not allowed.
    """
    place = parse_place(path)
    value = read_value(type_at(model, place), text)
    nested: Any = value
    for part in reversed(place):
        nested = {part: nested}
    try:
        made: Any = model.model_validate(nested)
    except ValidationError as error:
        raise_all(translate(error, model)[:1])
    for part in place:
        made = getattr(made, part)
    return made
