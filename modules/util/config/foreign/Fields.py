"""Settings of another program's file, taken one by one so that none is forgotten."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from modules.util.config.faults import join_place
from modules.util.config.foreign.Notes import Notes

T = TypeVar("T")


class Fields:
    """Values by name. ``note_rest`` reports the values that were not taken.

    Args:
        data: the settings.
        notes: receives values of the wrong kind and the rest.
        where: their location in the file, for notes.
    """

    def __init__(self, data: Mapping[str, Any], notes: Notes, where: str = "") -> None:
        self._left = {str(name): value for name, value in data.items()}
        self._notes = notes
        self._where = where

    def __contains__(self, name: str) -> bool:
        """Return whether the setting is present and not taken yet."""
        return self._left.get(name) is not None

    def place(self, name: str) -> str:
        return join_place((name,), self._where)

    def peek(self, name: str) -> Any:
        """The value, without taking it."""
        return self._left.get(name)

    def raw(self, name: str) -> Any:
        """Take the value, of any kind; None if it is not given."""
        return self._left.pop(name, None)

    def text(self, name: str, default: str = "") -> str:
        return self._of_kind(name, str, default)

    def flag(self, name: str, default: bool = False) -> bool:
        return self._of_kind(name, bool, default)

    def whole(self, name: str, default: int) -> int:
        value = self.number(name, default)
        if value is None or not float(value).is_integer():
            self._fault(name, value)
            return default
        return int(value)

    def number(self, name: str, default: float | None) -> float | None:
        """Take a finite number. A number written as text is accepted."""
        value = self._left.pop(name, None)
        if value is None:
            return default
        try:
            made = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            made = math.nan
        if not math.isfinite(made):
            self._fault(name, value)
            return default
        return made

    def inner(self, name: str) -> Fields:
        """Take the settings of a nested object; empty if there is none."""
        return Fields(self._of_kind(name, dict, {}), self._notes, self.place(name))

    def items(self, name: str) -> list[Fields]:
        """Take the objects of a nested list."""
        made = []
        for index, item in enumerate(self._of_kind(name, list, [])):
            place = f"{self.place(name)}[{index}]"
            if isinstance(item, Mapping):
                made.append(Fields(item, self._notes, place))
            else:
                self._notes.add(place, item, "not an object", faulty=True)
        return made

    def without_meaning(self, names: Iterable[str]) -> None:
        """Take settings that have no consequence here."""
        for name in names:
            self._left.pop(name, None)

    def lost(self, name: str, why: str, *, unless: Iterable[Any] = (None, False, 0, ""), **more: Any) -> None:
        """Take a setting without counterpart, and note it unless it is off."""
        value = self._left.pop(name, None)
        if not any(value == idle and type(value) is type(idle) for idle in (*unless, 0.0)):
            self._notes.add(self.place(name), value, why, **more)

    def left(self) -> dict[str, Any]:
        """Take everything that is left."""
        left, self._left = self._left, {}
        return left

    def note_rest(self) -> None:
        """Add a note for each setting that is left."""
        for name, value in self.left().items():
            if value is not None:
                self._notes.add(self.place(name), value, "unknown or not supported: not read", faulty=True)

    def _of_kind(self, name: str, kind: type[T], default: T) -> T:
        value = self._left.pop(name, None)
        if value is None:
            return default
        if not isinstance(value, kind):
            self._fault(name, value)
            return default
        return value

    def _fault(self, name: str, value: Any) -> None:
        self._notes.add(self.place(name), value, "left at the default: of the wrong kind", faulty=True)
