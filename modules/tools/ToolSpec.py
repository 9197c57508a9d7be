"""A tool described as data: the inputs of its command line and window."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

Value = str | int | float | bool


class Kind(StrEnum):
    """Kinds of input."""

    FOLDER = "folder"
    FILE = "file"
    TARGET = "file to write"
    MODEL = "file, folder or name on the hub"
    TEXT = "text"
    WHOLE = "whole number"
    NUMBER = "number"
    CHOICE = "choice"
    SWITCH = "switch"


PLACES = (Kind.FOLDER, Kind.FILE, Kind.TARGET, Kind.MODEL)
_TYPES = {
    Kind.FOLDER: Path, Kind.FILE: Path, Kind.TARGET: Path, Kind.MODEL: str, Kind.TEXT: str, Kind.WHOLE: int,
    Kind.NUMBER: float,
}  # fmt: skip


@dataclass(frozen=True)
class ToolField:
    """One input of a tool.

    Args:
        name: name on the command line; without dashes for positional arguments.
        title: title in the window.
        tip: explanation, for both.
        default: default value; empty for none.
        needed: whether it is required.
    """

    name: str
    title: str
    tip: str
    kind: Kind = Kind.TEXT
    default: Value = ""
    choices: tuple[str, ...] = ()
    needed: bool = False

    @property
    def key(self) -> str:
        """The key of its value."""
        return self.name.lstrip("-").replace("-", "_")

    @property
    def labels(self) -> dict[str, str]:
        """The choices by their labels in a window."""
        return {str(getattr(choice, "label", choice)): str(choice) for choice in self.choices}

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add it to a command line parser."""
        if self.kind is Kind.SWITCH:
            parser.add_argument(self.name, action="store_true", help=self.tip)
            return
        given: dict[str, object] = {"help": self.tip}
        if self.kind is Kind.CHOICE:
            given |= {"type": str.upper, "choices": self.choices}
        else:
            given |= {"type": _TYPES[self.kind]}
        if self.name.startswith("-"):
            given |= {"required": self.needed, "default": None if self.default == "" else self.default}
        parser.add_argument(self.name, **given)  # type: ignore[arg-type]

    def words(self, value: Value) -> list[str]:
        """A value from the window, where a choice may be its label, as command line arguments."""
        text = str(value).strip()
        text = self.labels.get(text, text)
        if self.kind is Kind.SWITCH:
            return [self.name] if value else []
        if not text or text == str(self.default):
            return []
        # a single argument, so that a text that begins with a dash is not mistaken for an option
        return [f"{self.name}={text}"] if self.name.startswith("-") else [text]


@dataclass(frozen=True)
class ToolSpec:
    """A tool.

    Args:
        key: its name in the program.
        title: title in the window.
        about: what it does, in one sentence.
        script: the file in ``scripts``.
        verb: subcommand of its script, if it has several.
        previews: whether it supports ``--dry-run``.
        shows: whether its last line names an image to show.
        undoes: whether its folder has a journal, so that ``undo`` of the same script undoes the last change.
    """

    key: str
    title: str
    about: str
    script: str
    verb: str = ""
    fields: tuple[ToolField, ...] = field(default_factory=tuple)
    previews: bool = True
    undoes: bool = False
    shows: bool = False

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add all inputs to a command line parser."""
        for one in self.fields:
            one.add_to(parser)
        if self.previews:
            parser.add_argument(
                "--dry-run", action="store_true", help="show what would be done, change nothing"
            )

    def add_command(
        self, verbs: argparse._SubParsersAction[argparse.ArgumentParser], run: Callable[..., None]
    ) -> argparse.ArgumentParser:
        """Add it to its script as a subcommand that calls ``run``."""
        command = verbs.add_parser(self.verb, help=self.about, description=self.about)
        command.set_defaults(run=run)
        self.add_to(command)
        return command

    def words(self, values: Mapping[str, Value], preview: bool) -> list[str]:
        """The command line after the script."""
        named = [one for one in self.fields if one.name.startswith("-")]
        places = [one for one in self.fields if one not in named]
        made = [word for one in named for word in one.words(values.get(one.key, one.default))]
        if preview:
            made.append("--dry-run")
        ends = [word for one in places for word in one.words(values.get(one.key, one.default))]
        return [*([self.verb] if self.verb else []), *made, *(["--", *ends] if ends else [])]

    def missing(self, values: Mapping[str, Value]) -> list[str]:
        """Titles of required inputs that are empty."""
        return [one.title for one in self.fields if one.needed and not str(values.get(one.key, "")).strip()]
