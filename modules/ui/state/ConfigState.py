"""The settings being edited: values, texts that are not valid yet, undo and redo. No Tk here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import Any

from modules.ui.texts import window as words
from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.load import find_problems
from modules.util.config.settings import Setting, is_visible, iter_settings, read_setting, visibility_in_words
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError, UserErrors

TYPING_SECONDS = 1.5
MAX_UNDO = 500


@dataclass(frozen=True)
class Cell:
    """Content of a field: its last valid value, and the typed text if that is not a valid value."""

    value: Any
    text: str | None = None


@dataclass
class Edit:
    """One step of undo. ``files`` are the paths before and after it, if it opened or left a file."""

    title: str
    before: dict[str, Cell]
    after: dict[str, Cell]
    when: float
    files: tuple[str, str] | None = None


@dataclass(frozen=True)
class Problem:
    """An error of a field, or a warning that its value is probably not intended."""

    path: str
    message: str
    hint: str = ""
    warning: bool = False


Listener = Callable[[frozenset[str]], None]


class EditedValues:
    """The values of a config that is edited field by field, and typed texts that are not valid values."""

    def __init__(self, config: BaseConfig) -> None:
        self.config = config
        self.settings: dict[str, Setting] = {s.path: s for s in iter_settings(type(config))}
        self._texts: dict[str, str] = {}
        self._faults: dict[str, UserError] = {}

    def value(self, path: str) -> Any:
        """The last valid value of a field."""
        return _get(self.config, path)

    def text(self, path: str) -> str:
        """The text to show in an entry: what was typed, or else the value."""
        typed = self._texts.get(path)
        return typed if typed is not None else value_text(self.value(path))

    def fault(self, path: str) -> UserError | None:
        """Return the fault of the text of a field."""
        return self._faults.get(path)

    def is_default(self, path: str) -> bool:
        """Return whether a field holds its default."""
        return path not in self._texts and plain_value(self.value(path)) == self.settings[path].default

    def is_visible(self, path: str) -> bool:
        """Return whether the field's row is shown at the current values of the others."""
        setting = self.settings[path]
        return not setting.hidden and is_visible(setting.visible, lambda name: plain_value(self.value(name)))


class ConfigState(EditedValues):
    """A config being edited. Listeners are called with the paths of changed cells.

    Args:
        config: initial config; also determines the class.
    """

    config: TrainConfig

    def __init__(self, config: TrainConfig | None = None) -> None:
        super().__init__(config if config is not None else TrainConfig())
        self.model = type(self.config)
        self._undo: list[Edit] = []
        self._redo: list[Edit] = []
        self._listeners: list[Listener] = []
        self.path = ""
        """The file of the settings; empty if they have none."""
        self._saved = {"": self.config.to_dict()}

    # -- reading ---------------------------------------------------------------------------------------------

    def cell(self, path: str) -> Cell:
        return Cell(self.value(path), self._texts.get(path))

    def typed(self) -> dict[str, str]:
        """The texts that are not valid values, by field."""
        return dict(self._texts)

    def shown_when(self, path: str) -> str:
        """The condition for the field's row, in words."""
        return visibility_in_words(self.settings[path].visible, self.settings)

    def problems(self) -> list[Problem]:
        """All problems: invalid texts first, in the order of the form, then contradictory values, then
        warnings. An invalid text in a hidden row has no effect, and is none until the row is shown.
        """
        faults = [path for path in self.settings if path in self._faults and self.is_visible(path)]
        made = [_as_problem(self._faults[path], path) for path in faults]
        found = find_problems(self.config)
        for error in found.errors:
            several = error.errors if isinstance(error, UserErrors) else (error,)
            made.extend(_as_problem(one, one.field or "") for one in several)
        made.extend(Problem(w.field, w.message, warning=True) for w in found.warnings)
        return made

    # -- changing --------------------------------------------------------------------------------------------

    def set_text(self, path: str, text: str) -> UserError | None:
        """Accept a typed text. If it is not a valid value, the text is kept and its fault returned."""
        cell, fault = self._read(path, text)
        self._change(self.settings[path].title, {path: cell}, {path: fault}, typing=True)
        return fault

    def set_value(self, path: str, value: Any) -> None:
        """Set a value from a switch, a list or a window.

        Raises:
            ConfigError: the value is not allowed.
        """
        self.set_values({path: value}, self.settings[path].title)

    def set_values(self, values: dict[str, Any], title: str) -> None:
        """Set several fields in one step of undo."""
        trial = self.config.copy_of()
        for path, value in values.items():
            assign(trial, path, value)
        cells = {path: Cell(_get(trial, path)) for path in values}
        self._change(title, cells, {})

    def reset(self, paths: Iterable[str]) -> None:
        """Reset fields to their defaults."""
        fresh = self.model()
        listed = list(paths)
        title = (
            words.UNDO_RESET.format(title=self.settings[listed[0]].title)
            if len(listed) == 1
            else words.UNDO_RESET_ALL
        )
        self._change(title, {path: Cell(_get(fresh, path)) for path in listed}, {})

    def replace(self, config: TrainConfig, title: str, file: str | None = None, saved: bool = False) -> None:
        """Replace the whole config, as one step of undo.

        Args:
            file: the file of the new config, empty for none; ``None`` keeps the present one. Undo brings the present
                one back with its settings, so that saving them does not overwrite another file.
            saved: the new config is not a change to be saved.
        """
        before, last = self.path, self._undo[-1] if self._undo else None
        self._change(title, {path: Cell(_get(config, path)) for path in self.settings}, {})
        if file is not None and file != before:
            self.path = file
            if self._undo and self._undo[-1] is not last:
                self._undo[-1].files = (before, file)
        if saved:
            self.mark_saved()

    def restore_typed(self, texts: dict[str, str]) -> None:
        """Restore texts that were not valid values when the program ended."""
        for path, text in texts.items():
            if path in self.settings and self.settings[path].kind in ("int", "float", "text"):
                self.set_text(path, text)
                self.seal()

    def seal(self) -> None:
        """End the current undo step, because the person left the field. The next typing is a step of its own."""
        if self._undo:
            self._undo[-1].when = 0.0

    def _read(self, path: str, text: str) -> tuple[Cell, UserError | None]:
        try:
            return Cell(read_setting(self.model, path, text)), None
        except UserError as error:
            return Cell(self.value(path), text), error

    def _change(
        self, title: str, cells: dict[str, Cell], faults: dict[str, UserError | None], typing: bool = False
    ) -> None:
        before = {path: self.cell(path) for path in cells}
        changed = {path: cell for path, cell in cells.items() if not _same(cell, before[path])}
        if not changed:
            return
        now = time.monotonic()
        last = self._undo[-1] if self._undo else None
        together = typing and last is not None and last.after.keys() == changed.keys()
        if together and last is not None and now - last.when < TYPING_SECONDS:
            last.after, last.when = changed, now
        else:
            self._undo.append(Edit(title, {p: before[p] for p in changed}, changed, now if typing else 0.0))
            del self._undo[:-MAX_UNDO]
        self._redo.clear()
        self._put(changed, faults)

    def _put(self, cells: dict[str, Cell], faults: dict[str, UserError | None] | None = None) -> None:
        for path, cell in cells.items():
            assign(self.config, path, cell.value)
            if cell.text is None:
                self._texts.pop(path, None)
                self._faults.pop(path, None)
            else:
                fault = (faults or {}).get(path) or self._read(path, cell.text)[1]
                self._texts[path] = cell.text
                if fault is not None:
                    self._faults[path] = fault
        paths = frozenset(cells)
        for listener in list(self._listeners):
            listener(paths)

    # -- undo ------------------------------------------------------------------------------------------------

    def undo(self) -> str | None:
        """Undo the last step and return its title."""
        return self._step(self._undo, self._redo, lambda edit: edit.before)

    def redo(self) -> str | None:
        """Redo the last undone step and return its title."""
        return self._step(self._redo, self._undo, lambda edit: edit.after)

    def _step(
        self, source: list[Edit], target: list[Edit], cells: Callable[[Edit], dict[str, Cell]]
    ) -> str | None:
        if not source:
            return None
        edit = source.pop()
        edit.when = 0.0
        target.append(edit)
        if edit.files is not None:  # the path being left may be another one since, by saving under a new name
            before, after = edit.files
            redone = source is self._redo
            edit.files = (self.path, after) if redone else (before, self.path)
            self.path = after if redone else before
        self._put(cells(edit))
        return edit.title

    def can_undo(self) -> bool:
        return bool(self._undo)

    def can_redo(self) -> bool:
        return bool(self._redo)

    # -- saving ----------------------------------------------------------------------------------------------

    def mark_saved(self) -> None:
        """Mark the current settings as saved."""
        self._saved[self.path] = self.config.to_dict()

    def mark_unsaved(self) -> None:
        """Mark the current settings as not saved in any file."""
        self._saved[self.path] = {}

    def is_modified(self) -> bool:
        """Return whether there are unsaved changes."""
        return bool(self._texts) or self.config.to_dict() != self._saved.get(self.path)

    # -- listeners -------------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)


def value_text(value: Any) -> str:
    """A value as a person would type it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    return repr(value) if isinstance(value, float) else str(value)


def plain_value(value: Any) -> Any:
    """A value as it is written to files."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list):
        return [plain_value(item) for item in value]
    return value.to_dict() if isinstance(value, BaseConfig) else value


def _get(config: BaseConfig, path: str) -> Any:
    return reduce(getattr, path.split("."), config)


def assign(config: BaseConfig, path: str, value: Any) -> None:
    """Set the value of a field."""
    owner, _, name = path.rpartition(".")
    setattr(_get(config, owner) if owner else config, name, value)


def _same(one: Cell, other: Cell) -> bool:
    if one.text != other.text or type(one.value) is not type(other.value):
        return False
    if isinstance(one.value, dict):  # 1, 1.0 and true compare equal, but are not the same
        return repr(one.value) == repr(other.value)
    return bool(one.value == other.value)


def _as_problem(error: UserError, path: str) -> Problem:
    return Problem(path, error.message, error.hint or "")
