"""Declares config fields: one ``setting(...)`` provides the data for forms, docs, schema and checks."""

from __future__ import annotations

import math
import re
from enum import Enum
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError, PydanticUndefined

from modules.util.owned_files import fault_of_path, shown

MAX_NAME_PART = 100
_PLAIN_NAME = re.compile(r'[^\x00-\x1f/\\:*?"<>|\ud800-\udfff]*')
_VARIANT = re.compile(r"[\w-]*", re.ASCII)
INFINITIES = {"inf": math.inf, "+inf": math.inf, "-inf": -math.inf}


def _number(value: Any) -> Any:
    """Write infinity as a string, because JSON has none. NaN is never valid."""
    if isinstance(value, str):
        return INFINITIES.get(value.strip().lower(), value)
    if isinstance(value, float) and math.isnan(value):
        raise PydanticCustomError("nan", "must be a number, not NaN")
    return value


Float = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(_number)]
"""A finite number. Integers are accepted, ``true`` is not."""


def _path(value: str) -> str:
    """Validate a path: one rule for all files and folders in configs refuses impossible names immediately."""
    fault = fault_of_path(value)
    if fault is None:
        try:
            value.encode()
        except UnicodeEncodeError:
            fault = "contains a character that cannot be stored"
    if fault:
        hint = "choose another name"
        raise PydanticCustomError(
            "setting", "{what}", {"what": f"{shown(value, 60)!r} {fault}", "hint": hint}
        )
    return value


def _name_part(value: str) -> str:
    if not _PLAIN_NAME.fullmatch(value) or len(value.encode(errors="replace")) > MAX_NAME_PART:
        text = f"{shown(value, 60)!r} is not the beginning of a file name"
        hint = f"use up to {MAX_NAME_PART} letters and digits, without / \\ : and control characters"
        raise PydanticCustomError("setting", "{what}", {"what": text, "hint": hint})
    return value


def _variant(value: str) -> str:
    if not _VARIANT.fullmatch(value):
        text = f"{shown(value, 60)!r} is not the variant of a file of weights"
        hint = "use letters, digits, - and _, such as fp16"
        raise PydanticCustomError("setting", "{what}", {"what": text, "hint": hint})
    return value


PathText = Annotated[str, AfterValidator(_path)]
"""A file, folder or hub name: without NUL, not too long, and encodable."""

NamePart = Annotated[str, AfterValidator(_name_part)]
"""The beginning of a file name; it cannot lead to another folder."""

VariantText = Annotated[str, AfterValidator(_variant)]
"""The variant in the names of files of weights, such as ``fp16``; empty for none."""


def title_of_name(name: str, _: object) -> str:
    """Return the title of a setting that declares none: its name in words, as ``Shared noise`` for
    ``rlhf_dpo_shared_noise``.
    """
    return name.removeprefix("rlhf_").removeprefix("dpo_").replace("_", " ").capitalize()


def setting(
    default: Any = PydanticUndefined,
    *,
    title: str | None = None,
    tip: str,
    group: str = "",
    within: tuple[float, float] | None = None,
    above: tuple[float, float] | None = None,
    below: tuple[float, float] | None = None,
    between: tuple[float, float] | None = None,
    multiple_of: int | None = None,
    min_length: int | None = None,
    visible: str = "",
    widget: str = "",
    hidden: bool = False,
    first: bool = False,
    factory: Any = PydanticUndefined,
    free: bool | None = None,
    cost: Literal["", "value", "switch"] = "",
) -> Any:
    """Declare a config field.

    Args:
        default: its value if a file does not set it.
        title: label of its row, a few words. Without one, ``title_of_name`` makes it from the field's name.
        tip: what it does and when to change it, one or two sentences.
        group: box of the section in which it is shown.
        within, above, below, between: range of its values. Both ends are allowed (``within``), the lower end is
            not (``above``), the upper end is not (``below``), or neither is (``between``).
        multiple_of, min_length: other limits of its values.
        visible: when the row is shown: conditions that must all hold, separated by commas. ``name`` is true
            when the field is on (or not empty), ``!name`` when it is not, ``name=A|B`` when it has one of the
            values. A leading dot means a field of the same object (``.train``).
        widget: a hint for forms if the type is not enough, see ``Setting.widget``.
        hidden: not a row of a form (lists with windows of their own, derived values).
        first: whether it is one of the few that matter in a first run. Pages with such settings show the
            others on demand.
        factory: creates the default if it is mutable.
        free: whether it may change between a backup and the run that resumes from it, because it leaves the
            weights as they are or is compared by what it means (base model, data). Every setting of a
            training run says so; a group of settings with ``False`` leaves it to its members.
        cost: whether it decides how long an optimizer step takes: every other ``value`` does, or only whether
            it is on (``switch``: neither 0 nor empty).
    """
    made: dict[str, Any] = {"default": default, "default_factory": factory}
    ranges = {("ge", "le"): within, ("gt", "le"): above, ("ge", "lt"): below, ("gt", "lt"): between}
    for names, ends in ranges.items():
        made |= dict(zip(names, ends or (), strict=False))
    limits = {"multiple_of": multiple_of, "min_length": min_length}
    made |= {name: value for name, value in limits.items() if value is not None}
    if isinstance(default, Enum):
        made["strict"] = False  # files hold the names of choices, not the choices
    made["json_schema_extra"] = _for_forms(
        free, group=group, visible=visible, widget=widget, hidden=hidden, first=first, cost=cost
    )
    return Field(title=title, description=tip, **made)


def _for_forms(free: bool | None, **extra: str | bool) -> dict[str, Any]:
    """Attributes of a field that pydantic does not know, except those that are empty or off."""
    made: dict[str, Any] = {name: value for name, value in extra.items() if value}
    return made if free is None else {**made, "free": free}


kept_setting = partial(setting, free=False)
"""Declares a field whose value a resumed run keeps."""
