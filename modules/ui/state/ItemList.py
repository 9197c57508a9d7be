"""The concepts or samples of a config as an editable list. No Tk here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

from modules.ui.state.ConfigState import ConfigState
from modules.ui.texts import lists as words
from modules.util.config.BaseConfig import BaseConfig
from modules.util.config.config_list import load_list
from modules.util.errors import UserError

T = TypeVar("T", bound=BaseConfig)


class ItemList(Generic[T]):
    """A list stored in the config itself or, until it is edited, in a file named by the config.

    The first edit copies the list from the file into the config. From then on it is saved and undone with it.

    Args:
        state: the settings being edited.
        kind: class of the items.
        field: config field of the list (``concepts``).
        file_field: config field of the file name (``concept_file_name``); empty for lists without a file.
    """

    def __init__(self, state: ConfigState, kind: type[T], field: str, file_field: str = "") -> None:
        self.state, self.kind, self.field, self.file_field = state, kind, field, file_field
        self.fault: UserError | None = None
        self._read: tuple[str, int, list[T]] | None = None

    @property
    def from_file(self) -> bool:
        """True if the list is still that of the file."""
        return bool(self.file_field) and self.state.value(self.field) is None

    def items(self) -> list[T]:
        """The current items. If those of a file are missing, ``fault`` says why."""
        inline = self.state.value(self.field)
        if inline is not None:
            self.fault = None
            return list(inline)
        if not self.file_field:
            return []
        name = str(self.state.value(self.file_field))
        try:
            stamp = Path(name).stat().st_mtime_ns
        except OSError:
            self.fault = None  # a list that was never written is empty
            return []
        if self._read is None or self._read[:2] != (name, stamp):
            self.fault = None
            made: list[T] = []
            try:
                made = self.load(Path(name))
            except UserError as error:
                self.fault = error
            self._read = (name, stamp, made)
        return list(self._read[2])

    def load(self, path: Path) -> list[T]:
        """Read the items of a file. Raises ``UserError`` that lists all faults."""
        return load_list(self.kind, path, None, self.field, f"list of {self.field}")

    def _store(self, items: Sequence[T], title: str) -> None:
        self.state.set_values({self.field: list(items)}, title)

    def read(self, path: Path) -> None:
        """Replace the list with that of a file. Raises ``UserError``."""
        self._store(self.load(path), words.UNDO_READ.format(name=path.name))

    def add(self, items: Sequence[T]) -> int:
        """Append items and return the position of the first."""
        before = self.items()
        self._store([*before, *items], words.UNDO_ADD.format(name=self.field))
        return len(before)

    def replace(self, index: int, item: T) -> None:
        """Replace one item."""
        items = self.items()
        items[index] = item
        self._store(items, words.UNDO_EDIT.format(name=self.field))

    def remove(self, indices: Sequence[int]) -> None:
        """Remove items."""
        gone = set(indices)
        self._store(
            [item for i, item in enumerate(self.items()) if i not in gone],
            words.UNDO_REMOVE.format(name=self.field),
        )

    def duplicate(self, indices: Sequence[int]) -> int:
        """Append copies and return the position of the first."""
        items = self.items()
        return self.add([items[i].copy_of() for i in indices])

    def move(self, indices: Sequence[int], step: int) -> list[int]:
        """Move items up (-1) or down (1) by one and return their new positions."""
        items, chosen = self.items(), sorted(indices, reverse=step > 0)
        if not chosen or not 0 <= chosen[0] + step < len(items):
            return sorted(indices)
        for index in chosen:
            items[index], items[index + step] = items[index + step], items[index]
        self._store(items, words.UNDO_ORDER.format(name=self.field))
        return sorted(index + step for index in chosen)

    def set_all(self, name: str, value: object, indices: Sequence[int]) -> None:
        """Set a field of several items to the same value."""
        items = [item.copy_of() for item in self.items()]
        for index in indices:
            setattr(items[index], name, value)
        self._store(items, words.UNDO_EDIT.format(name=self.field))
