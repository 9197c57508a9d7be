"""Files that list the captions of the images of a folder, as kohya's scripts write them."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modules.util.errors import DataError, UserError
from modules.util.jsonio import MAX_JSON_BYTES, parse_json, read_bytes
from modules.util.owned_files import shown

LINES = ".jsonl"
"""Ending of files with one JSON object per line."""
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/")
_HINT = 'write {"dog/1": {"caption": "a dog", "tags": "grass, ball"}}'
_HINT_OF_LINES = 'write {"image_path": "dog/1.png", "caption": "a dog"}'


@dataclass(frozen=True)
class Entry:
    """The caption and the tags of an image in a file.

    Args:
        name: the image as the file names it, with ``/``. Its ending may be missing, and the path may be full.
        caption: a sentence, or several on lines of their own.
        tags: more words; empty if there are none.
    """

    name: str
    caption: str
    tags: str

    def prompts(self, separator: str) -> tuple[str, ...]:
        """The lines of the caption, each followed by the separator and the tags, as kohya joins them.

        Without a caption, the tags alone.
        """
        tags = separator.join(_lines(self.tags))
        lines = _lines(self.caption)
        return tuple(f"{line}{separator}{tags}" if tags else line for line in lines) or (tags,)


@dataclass
class CaptionList:
    """The captions of one folder's images.

    Args:
        entries: by the image's name below the folder, with or without its ending.
        outside: names that are not below the folder. They are never looked for.
        used: the names of ``entries`` that were asked for.
    """

    entries: dict[str, Entry]
    outside: list[str]
    used: set[str] = field(default_factory=set)

    def of(self, image: str, stem: str) -> Entry | None:
        """The entry of an image, by its name below the folder with and without ending."""
        name = image if image in self.entries else stem
        self.used.add(name)
        return self.entries.get(name)

    def unused(self) -> list[str]:
        """Names without an image below the folder, as messages show them."""
        names = (entry.name for name, entry in self.entries.items() if name not in self.used)
        return [shown(name) for name in (*self.outside, *names)]


def read_captions(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> CaptionList:
    """The captions that a file gives to images below ``folder``.

    Raises:
        DataError: as ``read_entries``, or the file lists an image twice.
    """
    made = CaptionList({}, [])
    for entry, name in names_below(read_entries(path), folder):
        if name is None:
            made.outside.append(entry.name)
        elif name in made.entries:
            raise DataError(
                f"{shown(path)}: {shown(entry.name)} is listed twice", hint="remove one of the two captions"
            )
        else:
            made.entries[name] = entry
    return made


def read_entries(path: str | os.PathLike[str]) -> list[Entry]:
    """The entries of a file in their order.

    The file is a JSON object with one entry per image, or has one JSON object per line if its name ends with
    ``.jsonl``. Further values of an entry, such as the image's size, have no meaning here.

    Raises:
        DataError: the file is missing, unreadable, too large, not JSON of this kind, or lists no image.
    """
    try:
        data = read_bytes(path, "file of captions", MAX_JSON_BYTES)
        rows = _of_lines(data, path) if Path(path).suffix.lower() == LINES else _of_object(data, path)
        made = [_entry(name, values, f"{shown(path)}: {shown(name)}") for name, values in rows]
    except DataError:
        raise
    except UserError as error:
        raise DataError(error.message, hint=error.hint) from error
    if not made:
        raise DataError(f"{shown(path)} lists no image", hint=_HINT)
    return made


def _of_object(data: bytes, path: str | os.PathLike[str]) -> Iterator[tuple[str, Any]]:
    found = parse_json(data, f"file of captions {shown(path)}")
    if not isinstance(found, dict):
        raise DataError(f"{shown(path)} is not an object with one entry per image", hint=_HINT)
    yield from found.items()


def _of_lines(data: bytes, path: str | os.PathLike[str]) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            found = parse_json(line, f"line {number} of {shown(path)}")
            name = found.get("image_path") if isinstance(found, dict) else None
            if not isinstance(name, str) or not name.strip():
                raise DataError(f"{shown(path)}, line {number} names no image", hint=_HINT_OF_LINES)
            yield name, found


def _entry(name: str, values: Any, where: str) -> Entry:
    if not isinstance(values, Mapping):
        raise DataError(f"{where} is not an object with caption or tags", hint=_HINT)
    texts = []
    for key in ("caption", "tags"):
        text = values.get(key)
        text = "" if text is None else text
        if not isinstance(text, str) or "\0" in text:
            raise DataError(f"{where}: {key} is not a text", hint="write it in quotation marks")
        texts.append(text)
    return Entry(_plain(name), *texts)


def _lines(text: str) -> list[str]:
    return [stripped for line in text.splitlines() if (stripped := line.strip())]


def _plain(name: str) -> str:
    return name.replace("\\", "/")


def is_absolute(name: str) -> bool:
    """Return whether an entry names its image with a full path, of any operating system."""
    return _ABSOLUTE.match(name) is not None


def names_below(
    entries: Sequence[Entry], folder: str | os.PathLike[str]
) -> Iterator[tuple[Entry, str | None]]:
    """Each entry with the name of its image below ``folder``; None if it is outside."""
    starts = {_plain(os.path.abspath(folder)), _plain(os.path.realpath(folder))}
    for entry in entries:
        yield entry, _below(entry.name, starts)


def _below(name: str, starts: set[str]) -> str | None:
    """The name below one of the folders; None if it is outside."""
    if is_absolute(name):
        name = posixpath.normpath(name)
        cases = os.path.normcase(name)
        inside = [start for start in starts if cases.startswith(os.path.normcase(f"{start.rstrip('/')}/"))]
        return name[len(inside[0].rstrip("/")) + 1 :] if inside else None
    name = posixpath.normpath(name)
    return None if name == ".." or name.startswith("../") else name
