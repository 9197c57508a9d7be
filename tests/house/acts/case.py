"""A case: a config, one setting's other value, and what has to come out differently."""

from __future__ import annotations

import atexit
import copy
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from modules.util.config.BaseConfig import VERSION_KEY
from modules.util.config.TrainConfig import TrainConfig
from tests.house.acts.outcomes import See, Seen, Source, Work, compared_with, differ
from tests.trainer.builders import settings

Values = Mapping[str, Any]
Base = Callable[[Path], dict[str, Any]]
"""The settings of a config whose run lies in a folder, with dots in the names of settings of parts."""


@dataclass(frozen=True)
class Case:
    """Two configs that differ in one setting, and what shows it.

    Args:
        path: the setting, ``unet.learning_rate``; of a concept, a sample, a reward or an accelerator with the name of
            the list first: ``concepts.0.balancing``.
        base: makes the config.
        value: the other value; a function of the run's folder where it is a path.
        see: what differs.
        given: laid over the base in both configs, so that the setting acts.
        before: done in the run's folder before either run.
    """

    path: str
    base: Base
    value: Any
    see: See
    given: Values = field(default_factory=dict)
    before: Callable[[Path], None] | None = None

    def acts(self) -> bool:
        """Whether the outcomes of the config as it is, and of the one with the other value, differ; the second run ends
        as soon as it has shown it.
        """
        known = self._known()
        one = self.see.part(known)
        try:
            other = self._made({self.path: self.value}, known.work if self.see.of_weights else None)
        except Seen:
            return True
        return differ(one, self.see.part(other))

    def repeats(self) -> bool:
        """Whether the same config gives the same once more."""
        return not differ(self.see.part(self._known()), self.see.part(self._made({})))

    def changes_the_config(self) -> bool:
        """Whether the two configs are different ones, in this setting alone."""
        if self._key not in _DATA:
            _DATA[self._key] = self._data({})
        one, other = _DATA[self._key], self._data({self.path: self.value})
        changed = {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)} - FOLLOWING
        return bool(changed) and all(f"{name}.".startswith(f"{self.path}.") for name in changed)

    def _data(self, changed: Values) -> dict[str, Any]:
        return as_data(write(_reading(), self.base, {**self.given, **changed}))

    def inert(self) -> Any:
        """A block in which the program reads this setting as the base has it, whatever a config says."""
        return inert(self.path, self.base, self.given)

    @property
    def shared(self) -> str:
        """Brings cases together for which one outcome is worked out; alike in every process."""
        given = json.dumps({name: _named(value) for name, value in self.given.items()}, sort_keys=True)
        before = self.before.__qualname__ if self.before else ""
        return f"{self.see.source.__name__} {self.base.__qualname__} {given} {before}"

    @property
    def _key(self) -> Hashable:
        """What an outcome is worked out of. Functions are themselves, because several may have one name."""
        given = [
            (name, value if callable(value) else json.dumps(value, sort_keys=True))
            for name, value in sorted(self.given.items(), key=lambda pair: pair[0])
        ]
        return self.see.source, self.base, self.before, tuple(given)

    def _known(self) -> Any:
        if self._key not in _KNOWN:
            _KNOWN[self._key] = self._made({})
        return _KNOWN[self._key]

    def _made(self, changed: Values, compared: Work | None = None) -> Any:
        with fresh_folder() as folder, mock.patch(f"{__name__}.WORKING", [folder]):
            path = write(folder, self.base, {**self.given, **changed})
            if self.before is not None:
                self.before(folder)
            # not around the runs before it, of which something is left for this one
            with compared_with(compared) if compared else nullcontext():
                return self.see.source(folder, path)


FOLLOWING = {"rlhf_dpo_ref_mode"}
"""Settings that are worked out of others."""

WORKING: list[Path] = []
"""The folder of the run under way."""

_KNOWN: dict[Hashable, Any] = {}
_DATA: dict[Hashable, dict[str, Any]] = {}


def _named(value: Any) -> Any:
    return value.__qualname__ if callable(value) else value


@cache
def _root() -> Path:
    # next to the folders of other tests, which are in memory where there is room
    root = Path(tempfile.mkdtemp(prefix="acts-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


@cache
def _reading() -> Path:
    """Where configs are written that are read and not run."""
    return Path(tempfile.mkdtemp(dir=_root()))


@contextmanager
def fresh_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=_root()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def shared_folder(name: str, fill: Callable[[Path], None]) -> Path:
    """A folder that is filled once and only read."""
    folder = _root() / f"shared-{name}"
    folder.mkdir()
    fill(folder)
    return folder


def put(data: Any, path: str, value: Any) -> None:
    """Set a value at a path with dots; numbers are places in lists."""
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in way:
        data = data[part] if isinstance(data, list) else data.setdefault(part, {})
    data[last] = value


def write(folder: Path, base: Base, changed: Values) -> Path:
    """The config file of a base with other values."""
    path = folder / "config.json"
    path.write_text(json.dumps(_values(folder, base, changed)), encoding="utf-8")
    return path


def _values(folder: Path, base: Base, changed: Values) -> dict[str, Any]:
    made = settings(folder, concepts=[])
    made.pop("unet")
    for name, value in [*base(folder).items(), *changed.items()]:
        put(made, name, copy.deepcopy(value(folder) if callable(value) else value))
    return made


def as_data(path: Path) -> dict[str, Any]:
    """The settings as the program reads them, flat."""
    config = TrainConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
    return dict(_flat(config.to_dict(), ""))


def _flat(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value and not prefix.endswith("params."):
        for name, inner in value.items():
            yield from _flat(inner, f"{prefix}{name}.")
    elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        for place, inner in enumerate(value):
            yield from _flat(inner, f"{prefix}{place}.")
    else:
        yield prefix.rstrip("."), value


@contextmanager
def inert(path: str, base: Base, given: Values) -> Iterator[None]:
    """The program reads the setting at ``path`` as the base has it."""
    read = TrainConfig.model_validate.__func__  # type: ignore[attr-defined]

    def without_effect(kind: type[TrainConfig], given_data: Any, **named: Any) -> TrainConfig:
        made: TrainConfig = read(kind, given_data, **named)
        values = _values(WORKING[0], base, given)
        plain = read(kind, {name: value for name, value in values.items() if name != VERSION_KEY})
        *way, last = path.split(".")
        target, source = made, plain
        for part in way:
            target, source = _inner(target, part), _inner(source, part)
        setattr(target, last, getattr(source, last))
        return made

    with mock.patch.object(TrainConfig, "model_validate", classmethod(without_effect)):
        yield


def _inner(value: Any, part: str) -> Any:
    return value[int(part)] if part.isdigit() else getattr(value, part)


__all__ = ["Base", "Case", "Source", "Values", "inert", "shared_folder"]
