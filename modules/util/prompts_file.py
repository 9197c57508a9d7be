"""Files with one prompt per line: plain text, or JSON where prompts have images to edit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.util.display import counted
from modules.util.errors import DataError, UserError
from modules.util.files.OpenFolder import read_plain
from modules.util.jsonio import parse_json
from modules.util.owned_files import Owned, shown
from modules.util.pairs.source_files import further_sources

FIELD = "rlhf_prompts_file"
ENDING = ".jsonl"
"""Of files whose lines are JSON objects."""
MAX_FILE_BYTES = 64 * 2**20
MAX_PROMPT_LETTERS = 20_000
MAX_PROMPTS = 1_000_000


@dataclass(frozen=True)
class PromptRow:
    """One prompt of a file.

    Args:
        sources: the images that it edits, in order; empty for a prompt alone. The first need not be there.
    """

    text: str
    sources: tuple[Path, ...] = ()


def read_prompt_rows(path: str | Path) -> list[PromptRow]:
    """The prompts of a file, in order.

    In a text file each line is a prompt; empty lines and lines that begin with ``#`` do not count, blanks around a
    prompt neither. In a ``.jsonl`` file each line is an object: ``{"prompt": "make it night", "source": "cat.png"}``.
    A source is named relative to the file's folder and is never outside it; its second and third source are next to
    it, as ``cat.2.png`` and ``cat.3.png``. Without a source, the prompt is not an edit.
    A prompt that is listed twice is drawn twice as often.

    Raises:
        DataError: the file cannot be read, is not UTF-8 text, is too large or holds no prompt, or a line is wrong.
    """
    file = Path(path)
    try:
        data = read_plain(file, MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise DataError(f"{file} is larger than {MAX_FILE_BYTES >> 20} MiB", FIELD)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}", FIELD) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text", FIELD, "save it as UTF-8") from error
    if file.suffix.lower() == ENDING:
        return _checked(list(_rows_of_objects(text, file)), file)
    return [PromptRow(prompt) for prompt in prompts_of_text(text, file)]


def read_prompts_file(path: str | Path) -> list[str]:
    """The texts of ``read_prompt_rows``, for those who cannot use images to edit.

    Raises:
        DataError: as there, or a prompt has a source.
    """
    rows = read_prompt_rows(path)
    edits = sum(bool(row.sources) for row in rows)
    if edits:
        raise DataError(
            f"{path}: {counted(edits, 'prompt has', 'prompts have')} a source image, but only texts can be used here",
            FIELD,
            "use a text file with one prompt per line; lists of edits are for online training",
        )
    return [row.text for row in rows]


def prompts_of_text(text: str, file: str | Path) -> list[str]:
    """The prompts of a plain text.

    Args:
        file: its name in messages.

    Raises:
        DataError: it is not text, has no prompts or too many, or one that is too long.
    """
    if "\0" in text:
        raise DataError(f"{file} is not a text file", FIELD)
    rows = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if line and not line.startswith("#"):
            rows.append(PromptRow(_of_usual_length(line, file, number)))
    return [row.text for row in _checked(rows, file)]


def _of_usual_length(prompt: str, file: str | Path, number: int) -> str:
    if len(prompt) > MAX_PROMPT_LETTERS:
        raise DataError(
            f"{file}, line {number}: the prompt has {len(prompt)} characters; the maximum is {MAX_PROMPT_LETTERS}",
            FIELD,
        )
    return prompt


def _checked(rows: list[PromptRow], file: str | Path) -> list[PromptRow]:
    if not rows:
        raise DataError(f"{file} holds no prompt", FIELD, "write one prompt per line")
    if len(rows) > MAX_PROMPTS:
        raise DataError(f"{file} holds {len(rows)} prompts; the maximum is {MAX_PROMPTS}", FIELD)
    return rows


def _rows_of_objects(text: str, file: Path) -> Iterator[PromptRow]:
    folder = Owned(file.parent)
    # a JSON text may contain other separators of lines
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _row(line, file, number, folder)


def _row(line: str, file: Path, number: int, folder: Owned) -> PromptRow:
    where = f"{file}, line {number}"
    try:
        found: Any = parse_json(line, where)
    except UserError as error:
        raise DataError(error.message, FIELD, error.hint or 'write {"prompt": ..., "source": ...}') from error
    if not isinstance(found, dict) or not {"prompt"} <= found.keys() <= {"prompt", "source"}:
        raise DataError(f'{where} is not an object with "prompt" and, for edits, "source"', FIELD)
    prompt, source = found["prompt"], found.get("source")
    if not isinstance(prompt, str) or not prompt.strip() or "\0" in prompt:
        raise DataError(f"{where}: prompt is empty or not a text", FIELD, "write the prompt")
    prompt = _of_usual_length(prompt.strip(), file, number)
    if source is None:
        return PromptRow(prompt)
    if not isinstance(source, str):
        raise DataError(f"{where}: source is not the name of a file", FIELD)
    first = _inside(folder, source, where)
    further = further_sources(first)[1:]
    for path in further:
        _check_inside(folder, path, where)
    return PromptRow(prompt, (first, *further))


def _inside(folder: Owned, name: str, where: str) -> Path:
    """Return the path of a source.

    Raises:
        DataError: that is outside the folder once links are followed, or no name of a file.
    """
    try:
        path = folder.path(name)
    except UserError as error:
        raise DataError(
            f"{where}: {error.message.removesuffix(': it is left as it is')}", FIELD, _HINT
        ) from error
    _check_inside(folder, path, where)
    return path


def _check_inside(folder: Owned, path: Path, where: str) -> None:
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(folder.root):
        raise DataError(f"{where}: the source {shown(path)} leads out of {shown(folder.root)}", FIELD, _HINT)


_HINT = "put source images into the folder of this file, and name them relative to it"
