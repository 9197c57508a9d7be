"""Base class of all configs: strict reading that reports every fault, plain dicts and files, versions."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from modules.util.config.faults import (
    did_you_mean,
    few_strangers,
    item_type,
    older_fields,
    raise_all,
    translate,
    unwrap,
)
from modules.util.config.setting import title_of_name
from modules.util.errors import ConfigError
from modules.util.jsonio import write_json

VERSION_KEY = "__version"
Migration = Callable[[dict[str, Any]], dict[str, Any]]


class BaseConfig(BaseModel):
    """A strict pydantic model that raises ``ConfigError``s.

    Unknown keys, wrong types, numbers out of range and NaN are refused wherever a value comes from: files,
    keyword arguments, assignments. A single fault is raised as it is, several as one ``UserErrors``.

    Class attributes:
        VERSION: number of the file format; 0 for parts that share the version of their container.
        MIGRATIONS: pure functions on dicts that migrate version n to n + 1. Files without a version have
            version 0.
        WHAT: what errors call such a file.
        OLDER_NAMES: a class of replaced settings that are still read; see ``OlderNames``.
    """

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        validate_assignment=True,
        protected_namespaces=(),
        defer_build=True,
        field_title_generator=title_of_name,
    )

    VERSION: ClassVar[int] = 0
    MIGRATIONS: ClassVar[Mapping[int, Migration]] = {}
    WHAT: ClassVar[str] = "config"
    OLDER_NAMES: ClassVar[type[BaseConfig] | None] = None

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise_all(translate(error, type(self)))

    # Validation of nested objects must not go through __init__, otherwise their faults would lose their
    # location.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in type(self).model_fields and not name.startswith("_"):
            hint = did_you_mean(name, type(self).model_fields)
            raise ConfigError("there is no such setting", name, hint or None)
        try:
            super().__setattr__(name, value)
        except ValidationError as error:
            raise_all(translate(error, type(self)))

    @classmethod
    def upgrade(cls, data: Mapping[str, Any], where: str = "") -> dict[str, Any]:
        """Copy ``data`` into the current format, without version keys. Nested objects are included.

        Raises:
            ConfigError: the version is newer than this program supports, or is not a number.
        """
        made = dict(data)
        if cls.VERSION:
            version = made.pop(VERSION_KEY, 0)
            cls._check_version(version, where)
            for step in range(version, cls.VERSION):
                migrate = cls.MIGRATIONS.get(step)
                made = migrate(made) if migrate else made
        made = few_strangers(made, {*cls.model_fields, *older_fields(cls)})
        for name, annotation in _nested(cls).items():
            if name in made:
                place = f"{where}.{name}" if where else name
                made[name] = _upgrade_value(annotation, made[name], place)
        return made

    @classmethod
    def _check_version(cls, version: object, where: str) -> None:
        field = f"{where}.{VERSION_KEY}" if where else VERSION_KEY
        if isinstance(version, bool) or not isinstance(version, int) or version < 0:
            raise ConfigError(f"must be a whole number, not {version!r}", field)
        if version > cls.VERSION:
            raise ConfigError(
                f"this {cls.WHAT} has format {version}; this program knows formats up to {cls.VERSION}",
                field,
                (
                    "update the program; if another program wrote the file, import it with "
                    "scripts/import_config.py"
                ),
            )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "") -> Self:
        """Build from plain data of any known version.

        Args:
            data: the output of ``to_dict`` or a part of it; missing keys keep their defaults.
            where: location of ``data`` in a larger file, for errors (``concepts[3]``).

        Raises:
            ConfigError, UserErrors: all faults.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(f"must be an object {{...}}, not {type(data).__name__}", where or None)
        try:
            return cls.model_validate(cls.upgrade(data, where))
        except ValidationError as error:
            faults = translate(error, cls, where)
        raise_all(faults, f"the {cls.WHAT} has {len(faults)} faults")
        raise AssertionError("unreachable")

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain JSON data with the version first. ``from_dict`` of it equals ``self``."""
        made: dict[str, Any] = {VERSION_KEY: self.VERSION} if self.VERSION else {}
        for name in type(self).model_fields:
            made[name] = _plain(getattr(self, name))
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON, atomically."""
        write_json(path, self.to_dict())

    def copy_of(self) -> Self:
        """A deep copy."""
        return self.model_copy(deep=True)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseConfig):
        return value.to_dict()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


@cache
def _nested(model: type[BaseConfig]) -> dict[str, Any]:
    """The annotations of the fields of a config class that hold configs or lists of them; no other has a version."""
    return {name: field.annotation for name, field in model.model_fields.items() if _has_config(field.annotation)}


def _has_config(annotation: Any) -> bool:
    plain, _ = unwrap(annotation)
    if isinstance(plain, type) and issubclass(plain, BaseConfig):
        return True
    inner = item_type(plain)
    return inner is not None and _has_config(inner)


def _upgrade_value(annotation: Any, value: Any, where: str) -> Any:
    plain, _ = unwrap(annotation)
    if isinstance(plain, type) and issubclass(plain, BaseConfig):
        return plain.upgrade(value, where) if isinstance(value, Mapping) else value
    inner = item_type(plain)
    if inner is not None and isinstance(value, list):
        return [_upgrade_value(inner, item, f"{where}[{index}]") for index, item in enumerate(value)]
    return value
