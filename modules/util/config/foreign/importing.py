"""Converts files or folders of other programs into ours, with a list of differences."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modules.util.config.aitoolkit.aitoolkit_import import read_aitoolkit
from modules.util.config.BaseConfig import VERSION_KEY, BaseConfig
from modules.util.config.foreign.ignored_rates import leave_out_ignored_rates
from modules.util.config.foreign.Notes import Note, Notes
from modules.util.config.foreign.yaml_file import read_yaml
from modules.util.config.kohya.kohya_import import MODEL, read_kohya, read_toml
from modules.util.config.load import find_problems
from modules.util.config.onetrainer.onetrainer_import import (
    import_onetrainer_list,
    read_onetrainer,
    their_settings,
)
from modules.util.config.TrainConfig import TrainConfig
from modules.util.display import counted
from modules.util.errors import UserError
from modules.util.jsonio import read_json, write_json, write_text
from modules.util.owned_files import shown

DONE, REFUSED, CHANGED = 0, 2, 3
"""Outcomes of an import: same training; refused, nothing written; written, but the training differs."""
MOST_FILES = 10_000
AUTO, ONETRAINER, KOHYA, AITOOLKIT = PROGRAMS = ("auto", "onetrainer", "kohya", "aitoolkit")
YAML = (".yaml", ".yml")
_READ = (".json", ".toml", *YAML)


@dataclass(frozen=True)
class Import:
    """The result of importing a file.

    Args:
        made: the config, or a list of concepts or samples.
        notes: what is not carried over unchanged.
    """

    made: TrainConfig | Sequence[BaseConfig]
    notes: Notes

    def outcome(self) -> int:
        return CHANGED if any(note.changes_weights for note in self.notes.listed()) else DONE

    def write(self, source: Path, target: Path, full: bool, overwrite: bool = False) -> None:
        """Write the result to ``target`` and the notes next to it.

        Args:
            source: the file that was read. It is never replaced.
            full: write all settings, not only those that differ from their defaults.
            overwrite: whether to replace a file with other content.

        Raises:
            UserError: ``target`` is the source, or has other content. Nothing is written then.
        """
        made: Any
        if isinstance(self.made, TrainConfig):
            made = self.made.to_dict() if full else self.made.sparse_dict()
        else:
            made = [item.to_dict() for item in self.made]
        _check_target(source, target, made, overwrite)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_json(target, made)
        neighbour = target.with_name(f"{target.name}.notes.txt")
        lines = report(self.notes.listed())
        if lines or neighbour.exists():
            write_text(neighbour, "\n".join([*lines, ""]) if lines else "every setting was imported\n")


def _check_target(source: Path, target: Path, made: Any, overwrite: bool) -> None:
    if not os.path.lexists(target):
        return
    if target.exists() and target.samefile(source):
        raise UserError(
            f"{shown(target)} is the file that is imported, and would be replaced",
            hint="choose another name, or another folder",
        )
    if not overwrite and not _holds(target, made):
        raise UserError(
            f"{shown(target)} already exists and has other content",
            hint="choose another name, or replace it with --overwrite",
        )


def _holds(path: Path, made: Any) -> bool:
    """Return whether a file holds this data."""
    try:
        return bool(read_json(path, "earlier import") == made)
    except UserError:
        return False


def import_file(
    source: str | os.PathLike[str],
    lenient: bool = False,
    strict: bool = False,
    program: str = AUTO,
    family: str = "",
    proceed: Callable[[], object] = lambda: None,
) -> Import:
    """Read a file of another program.

    Args:
        source: a config, a concept list or a sample list.
        lenient: replace unsupported values by the nearest supported ones instead of refusing them (OneTrainer
            files).
        strict: refuse anything that changes the training, unknown settings and values of the wrong kind.
        program: one of ``PROGRAMS``; AUTO detects it from the file.
        family: the model family, if a file of kohya or ai-toolkit does not tell it.
        proceed: called before each file that is read besides the source, such as a caption. What it raises ends the
            import.

    Raises:
        UserError: the file is unreadable, asks for something unsupported, or is refused by ``strict``.
    """
    made: TrainConfig | Sequence[BaseConfig]
    program = _program(Path(source)) if program == AUTO else program
    if program == KOHYA:
        made, notes = read_kohya(Path(source), family, proceed)
    elif program == AITOOLKIT:
        made, notes = read_aitoolkit(_mapping(Path(source)), family)
    elif isinstance(read_json(source, "OneTrainer file"), list):
        made, lost = import_onetrainer_list(source)
        notes = Notes()
        notes.extend(lost)
    else:
        made, notes = read_onetrainer(source, lenient)
    if program != ONETRAINER and isinstance(made, TrainConfig):
        leave_out_ignored_rates(made, notes)
        for error in find_problems(made).errors:
            notes.say(error.field or "", f"{error.message}; change it")
    if strict:
        _refuse(notes.listed())
    return Import(made, notes)


def _program(path: Path) -> str:
    """Detect which program wrote a file, by its type and content."""
    if path.suffix.lower() == ".toml":
        return KOHYA
    if path.suffix.lower() in YAML:
        return AITOOLKIT
    data = read_json(path, "file of another program")
    return AITOOLKIT if _is_aitoolkit(data) else ONETRAINER


def _is_aitoolkit(data: Any) -> bool:
    inner = data.get("config") if isinstance(data, Mapping) else None
    return isinstance(inner, Mapping) and "process" in inner


def _mapping(path: Path) -> Mapping[str, Any]:
    data = read_yaml(path) if path.suffix.lower() in YAML else read_json(path, "config of ai-toolkit")
    if not isinstance(data, Mapping):
        raise UserError(
            f"{path} is not a config: it must be an object", None, "is it a config of ai-toolkit?"
        )
    return data


def _refuse(notes: Sequence[Note]) -> None:
    refused = [note for note in notes if note.changes_weights or note.faulty]
    if refused:
        listed = "\n".join(f"    {note}" for note in refused)
        raise UserError(
            f"changed or lost:\n{listed}",
            hint="change these settings in the other program and export the config again, or leave out --strict",
        )


def report(notes: Sequence[Note]) -> list[str]:
    """The notes under their two headings."""
    lines: list[str] = []
    for heading, changes in (("changes training:", True), ("no effect here:", False)):
        found = [f"  {note}" for note in notes if note.changes_weights is changes]
        lines += [heading, *found] if found else []
    return lines


def comparison(notes: Notes) -> list[str]:
    """List what is changed, lost, or means the same under another name: name, their value, our value, reason."""
    lines: list[str] = []
    for heading, found in notes.compared():
        rows = [f"  {note.place}: {note.theirs or '-'} -> {note.ours or '-'}  ({note.why})" for note in found]
        lines += [f"{heading}:", *rows] if rows else []
    return lines or ["every setting is imported under its own name"]


# -- folders -----------------------------------------------------------------------------------------------


@dataclass
class FolderImport:
    """Imports all files of a folder one after the other.

    Args:
        source: the folder with files of another program.
        target: the folder to mirror it to; None writes nothing.
        lenient, strict: as ``import_file``.
        full, overwrite: as ``Import.write``.
        user_only: leave out built-in presets, whose names begin with ``#``.
        outcome: the worst outcome of all files.
    """

    source: Path
    target: Path | None
    lenient: bool = False
    strict: bool = False
    full: bool = False
    user_only: bool = False
    program: str = AUTO
    family: str = ""
    overwrite: bool = False
    outcome: int = field(default=DONE, init=False)

    def lines(self) -> Iterator[str]:
        """Import the files one by one, yielding a line about each.

        Raises:
            UserError: the folder holds no such file or more than ``MOST_FILES``.
        """
        found = 0
        for path in self._files():
            name = path.relative_to(self.source)
            if self.user_only and path.name.startswith("#"):
                continue
            try:
                if not self._is_theirs(path):
                    continue
                found += 1
                yield f"{name}: {self._one(path, name)}"
            except UserError as error:
                found += 1
                self._worst(REFUSED)
                yield f"{name}: refused: {str(error).splitlines()[0]}"
        if not found:
            raise UserError(f"{self.source} holds no config, concept list or sample list of another program")

    def _is_theirs(self, path: Path) -> bool:
        program = _program(path)
        if self.program not in (AUTO, program):
            return False
        if program == ONETRAINER:
            return _theirs(read_json(path, "OneTrainer file"))
        # programs that share a format are distinguished by names that are always present
        if program == KOHYA:
            found = read_toml(path)
            return "datasets" in found or any(
                isinstance(one, Mapping) and MODEL in one for one in (found, *found.values())
            )
        return _is_aitoolkit(_mapping(path))

    def _files(self) -> list[Path]:
        found: list[Path] = []
        for folder, folders, names in os.walk(self.source):
            here = Path(folder)
            folders[:] = sorted(
                name
                for name in folders
                if self.target is None or (here / name).resolve() != self.target.resolve()
            )
            found += [here / name for name in sorted(names) if Path(name).suffix.lower() in _READ]
            if len(found) > MOST_FILES:
                raise UserError(
                    f"{self.source} holds more than {MOST_FILES:,} files", hint="name a folder within it"
                )
        return [path for path in found if path.is_file() and path.name != "secrets.json"]

    def _one(self, path: Path, name: Path) -> str:
        imported = import_file(path, self.lenient, self.strict, self.program, self.family)
        self._worst(imported.outcome())
        if self.target is not None:
            # keep two files apart that differ only in their extension
            place = name if name.suffix.lower() == ".json" else name.with_name(f"{name.name}.json")
            imported.write(path, self.target / place, self.full, self.overwrite)
        said = "same training" if imported.outcome() == DONE else "the training differs"
        notes = imported.notes.listed()
        return f"{said}, {counted(len(notes), 'note')}" if notes else said

    def _worst(self, outcome: int) -> None:
        self.outcome = max(self.outcome, outcome, key=(DONE, CHANGED, REFUSED).index)


def _theirs(data: Any) -> bool:
    """Return whether JSON data looks like a config or list of another program rather than ours."""
    if isinstance(data, list):
        fields = set().union(*(item for item in data if isinstance(item, Mapping)))
        return bool(fields) and bool(fields & {"path", "prompt", "image", "text"})
    if not isinstance(data, Mapping):
        return False
    known = sum(name in their_settings() for name in data)
    ours = (
        data.get(VERSION_KEY) == TrainConfig.VERSION
        and data.keys() - {VERSION_KEY} <= TrainConfig.model_fields.keys()
    )
    return known >= 2 and not ours
