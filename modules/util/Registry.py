"""Registries of named things. Adding an entry means adding one file (or one decorated function)."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from modules.util.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """A mapping from keys to things, filled by decorators in the modules of one package.

    Args:
        what: what errors call an entry ("preference loss").
        package: dotted name of the package whose modules are imported on first use, or ``None``.
    """

    def __init__(self, what: str, package: str | None = None) -> None:
        self.what = what
        self._package = package
        self._items: dict[str, T] = {}

    def register(self, key: str) -> Callable[[T], T]:
        """Decorator that registers its argument under ``key``. Registering a key twice is a bug."""

        def file_under(item: T) -> T:
            if key in self._items and self._items[key] is not item:
                raise RuntimeError(f"two entries for {self.what} {key!r}")
            self._items[key] = item
            return item

        return file_under

    def _scan(self) -> None:
        if self._package is None:
            return
        name, self._package = self._package, None
        package = importlib.import_module(name)
        for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
            importlib.import_module(f"{name}.{module}")

    def get(self, key: str, field: str | None = None) -> T:
        """The entry under ``key``. An unknown key is a ``ConfigError`` that suggests the nearest known one.
        """
        self._scan()
        if key in self._items:
            return self._items[key]
        near = difflib.get_close_matches(key, list(self._items), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(self._items))}"
        raise ConfigError(f"unknown {self.what} {key!r}", field=field, hint=hint)

    def __contains__(self, key: str) -> bool:
        self._scan()
        return key in self._items

    def keys(self) -> list[str]:
        self._scan()
        return sorted(self._items)

    def items(self) -> Iterator[tuple[str, T]]:
        self._scan()
        yield from sorted(self._items.items())
