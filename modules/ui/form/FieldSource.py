"""The source of values and the target of edits for the rows of a form: the edited config, or one object of a
list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from modules.ui.state.ConfigState import EditedValues, assign
from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.settings import Setting, read_setting
from modules.util.errors import UserError


class FieldSource(Protocol):
    """The interface that a row needs; implemented by ``ConfigState``."""

    def value(self, path: str) -> Any: ...
    def text(self, path: str) -> str: ...
    def fault(self, path: str) -> UserError | None: ...
    def is_default(self, path: str) -> bool: ...
    def is_visible(self, path: str) -> bool: ...
    def set_text(self, path: str, text: str) -> UserError | None: ...
    def set_value(self, path: str, value: Any) -> None: ...
    def reset(self, paths: Iterable[str]) -> None: ...
    def seal(self) -> None: ...


class ObjectSource(EditedValues):
    """A single config object (a concept, a sample) as a source.

    Args:
        config: a copy that may be changed.
        changed: called with the path after every change of a value.
    """

    def __init__(self, config: BaseConfig, changed: Callable[[str], None] = lambda path: None) -> None:
        super().__init__(config)
        self._changed = changed

    def faults(self) -> list[tuple[Setting, UserError]]:
        """All texts that are not valid values."""
        return [(self.settings[path], fault) for path, fault in self._faults.items()]

    def set_text(self, path: str, text: str) -> UserError | None:
        try:
            value = read_setting(type(self.config), path, text)
        except UserError as error:
            self._texts[path], self._faults[path] = text, error
            self._changed(path)
            return error
        self._assign(path, value)
        return None

    def set_value(self, path: str, value: Any) -> None:
        self._assign(path, value)

    def reset(self, paths: Iterable[str]) -> None:
        fresh = ObjectSource(type(self.config)())
        for path in paths:
            self._assign(path, fresh.value(path))

    def seal(self) -> None:
        """Do nothing: single objects have no undo of their own."""

    def _assign(self, path: str, value: Any) -> None:
        assign(self.config, path, value)
        self._texts.pop(path, None)
        self._faults.pop(path, None)
        self._changed(path)
