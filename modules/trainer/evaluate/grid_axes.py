"""The axes of a sample grid with their values, and the resulting cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from modules.runner.run_list import summary_of
from modules.runner.RunDirectory import RunDirectory
from modules.util.config.SampleConfig import SampleConfig
from modules.util.enum.choices import NoiseScheduler
from modules.util.errors import ConfigError
from modules.util.files.adapter_list import MAX_STRENGTH

MOST_VALUES, MOST_CELLS = 100, 400
BASE = "none"
_NUMBER = re.compile(r"\d+")
Adapters = tuple[tuple[Path, float], ...]


@dataclass(frozen=True)
class Cell:
    """One image of a grid.

    Args:
        adapters: adapter files, each with a strength.
        strength: factor on all of their strengths.
    """

    sample: SampleConfig
    adapters: Adapters = ()
    strength: float = 1.0

    def chosen(self) -> list[tuple[Path, float]]:
        """The adapters with their strengths in this cell."""
        return [(path, strength * self.strength) for path, strength in self.adapters]


@dataclass(frozen=True)
class Value:
    """One value of an axis: a column or row."""

    label: str
    apply: Callable[[Cell], Cell]


@dataclass(frozen=True)
class Axis:
    """An axis of a grid.

    Args:
        name: the varied setting.
        values: at least one.
    """

    name: str
    values: tuple[Value, ...]


def saves_of(place: Path) -> list[Path]:
    """The adapter files in the folder of a run, or in any folder, oldest first."""
    saved = [*place.glob("*.safetensors"), *(place / "save").glob("*.safetensors")]
    found = sorted(
        (path for path in saved if path.is_file()),
        key=lambda path: [int(digits) for digits in _NUMBER.findall(path.stem)],
    )
    run = summary_of(place)
    last = None if run is None else run.adapter
    own = [last] if last is not None and last.suffix == ".safetensors" and _is_of(place, last) else []
    known = {path.resolve() for path in own}
    return [*(path for path in found if path.resolve() not in known), *own]


def _is_of(place: Path, adapter: Path) -> bool:
    """Return whether a run can have written its adapter. Another run may have written the same file, and
    ended before.
    """
    config = RunDirectory(place).config_path
    return adapter.is_file() and config.is_file() and adapter.stat().st_mtime_ns >= config.stat().st_mtime_ns


def last_save(place: Path, field: str) -> Path:
    """The adapter that a run saved last; a file is returned as it is.

    Raises:
        ConfigError: the run has not saved an adapter yet.
    """
    if not place.is_dir():
        return place
    found = saves_of(place)
    if not found:
        raise ConfigError(f"{place} holds no adapter file", field, "name a run that has saved, or a file")
    return max(found, key=lambda path: path.stat().st_mtime_ns)


def read_axis(text: str, field: str) -> Axis:
    """Parse an axis such as ``strength=0,0.5,1``.

    Raises:
        ConfigError: the axis does not exist, or a value does not fit it.
    """
    name, sign, values = text.partition("=")
    name = name.strip().lower()
    if not sign or name not in _KINDS:
        known = ", ".join(_KINDS)
        raise ConfigError(
            f"{text!r} does not begin with an axis", field, f"known: {known}; for example strength=0,0.5,1"
        )
    made = tuple(_KINDS[name](values, field))
    if not 1 <= len(made) <= MOST_VALUES:
        raise ConfigError(f"{len(made)} values; 1 to {MOST_VALUES} are possible", field)
    return Axis(name, made)


def cells_of(base: Cell, x: Axis | None, y: Axis | None) -> list[list[Cell]]:
    """The cells row by row.

    Raises:
        ConfigError: both axes vary the same setting, or there are too many cells.
    """
    if x is not None and y is not None and _varied(x) == _varied(y):
        raise ConfigError(f"both axes vary the {x.name}", "--y", "vary something else")
    columns, rows = (_SAME if axis is None else axis.values for axis in (x, y))
    if len(columns) * len(rows) > MOST_CELLS:
        raise ConfigError(
            f"{len(columns)} x {len(rows)} images are more than {MOST_CELLS}", "--x", "give fewer values"
        )
    if any(axis is not None and axis.name == "strength" for axis in (x, y)):
        for column in columns:
            for row in rows:
                _check_strength(column.apply(row.apply(base)))
    return [[column.apply(row.apply(base)) for column in columns] for row in rows]


def _varied(axis: Axis) -> str:
    return _SETTINGS.get(axis.name, _SYNONYMS.get(axis.name, axis.name))


def _check_strength(cell: Cell) -> None:
    wrong = next((one for _, one in cell.chosen() if abs(one) > MAX_STRENGTH), None)
    if wrong is not None:
        raise ConfigError(f"a strength of {wrong:g} is not between -10 and 10", "--x")


def _texts(values: str, separator: str) -> list[str]:
    return list(dict.fromkeys(text for one in values.split(separator) if (text := one.strip())))


def _with(field: str, setting: str, text: str, value: Any) -> Value:
    # reports what is wrong with it
    SampleConfig.from_dict({setting: value.value if isinstance(value, NoiseScheduler) else value})
    return Value(
        text if setting == "prompt" else f"{field} {text}",
        lambda cell: replace(cell, sample=cell.sample.model_copy(update={setting: value})),
    )


def _numbers(text: str, kind: type[int] | type[float], field: str) -> Sequence[float]:
    first, dash, last = text.partition("-")
    try:
        ends = [kind(first), kind(last)] if kind is int and dash and first else [kind(text)]
    except ValueError as error:
        what = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{text!r} is not {what}", field, "separate values by commas") from error
    if len(ends) == 1:
        return ends
    start, stop = int(ends[0]), int(ends[-1])
    if stop - start >= MOST_VALUES:
        raise ConfigError(f"{text} has more than {MOST_VALUES} values", field)
    return list(range(start, stop + 1))


def _of_setting(name: str, kind: type[int] | type[float]) -> Callable[[str, str], list[Value]]:
    def read(values: str, field: str) -> list[Value]:
        found = dict.fromkeys(one for text in _texts(values, ",") for one in _numbers(text, kind, field))
        return [_with(name, _SETTINGS[name], f"{one:g}" if kind is float else str(one), one) for one in found]

    return read


def _prompts(values: str, field: str) -> list[Value]:
    return [_with("prompt", "prompt", text, text) for text in _texts(values, "|")]


def _samplers(values: str, field: str) -> list[Value]:
    found = [text.upper() for text in _texts(values, ",")]
    known = [one.value for one in NoiseScheduler]
    wrong = next((one for one in found if one not in known), None)
    if wrong is not None:
        raise ConfigError(f"there is no sampler {wrong}", field, f"known: {', '.join(known)}")
    return [_with("sampler", "noise_scheduler", one, NoiseScheduler(one)) for one in found]


def _strengths(values: str, field: str) -> list[Value]:
    found = dict.fromkeys(one for text in _texts(values, ",") for one in _numbers(text, float, field))
    wrong = next((one for one in found if not abs(one) <= MAX_STRENGTH), None)
    if wrong is not None:
        raise ConfigError(f"{wrong} is not between -10 and 10", field)
    return [Value(f"strength {one:g}", partial(replace, strength=float(one))) for one in found]


def _adapters(values: str, field: str) -> list[Value]:
    made: list[tuple[Path | None, Value]] = []
    for text in _texts(values, ";"):
        place = Path(text)
        if text.lower() == BASE:
            made.append((None, Value("no adapter", lambda cell: cell)))
            continue
        if not place.exists():
            raise ConfigError(f"{place} does not exist", field, "check the path; files are separated by ;")
        files = saves_of(place) if place.is_dir() else [place]
        if not files:
            raise ConfigError(
                f"{place} holds no adapter file", field, "name a run that has saved, or a .safetensors file"
            )
        made += [(path, Value(path.stem, _joined(path))) for path in files]
    labels = _told_apart([path for path, _ in made if path is not None])
    return [value if path is None else replace(value, label=labels[path]) for path, value in made]


def _told_apart(paths: Sequence[Path]) -> dict[Path, str]:
    """Short names of files: their names, preceded by as many folders as needed to distinguish equal names."""
    labels: dict[Path, str] = {}
    places = {path: path.resolve() for path in paths}
    for stem in {path.stem for path in paths}:
        alike = [path for path in places if path.stem == stem]
        for count in range(max(len(places[path].parts) for path in alike)):
            named = {path: "/".join((*_folders(places[path], count), stem)) for path in alike}
            if len(set(named.values())) == len({places[path] for path in alike}):
                break
        labels |= named
    return labels


def _folders(path: Path, count: int) -> tuple[str, ...]:
    """The names of the last folders in the path of a file."""
    above = path.parent.parts
    return above[max(0, len(above) - count) :]


def _joined(path: Path) -> Callable[[Cell], Cell]:
    return lambda cell: replace(cell, adapters=((path, 1.0), *cell.adapters))


_SETTINGS: Mapping[str, str] = {"seed": "seed", "steps": "diffusion_steps", "cfg": "cfg_scale"}
_SYNONYMS: Mapping[str, str] = {"adapter": "checkpoint"}
_SAME: Sequence[Value] = (Value("", lambda cell: cell),)
_KINDS: Mapping[str, Callable[[str, str], list[Value]]] = {
    "checkpoint": _adapters,
    "adapter": _adapters,
    "strength": _strengths,
    "prompt": _prompts,
    "seed": _of_setting("seed", int),
    "steps": _of_setting("steps", int),
    "cfg": _of_setting("cfg", float),
    "sampler": _samplers,
}
