"""Files with one prompt per line."""

from __future__ import annotations

from pathlib import Path

from modules.util.errors import DataError
from modules.util.files.OpenFolder import read_plain

MAX_FILE_BYTES = 64 * 2**20
MAX_PROMPT_LETTERS = 20_000
MAX_PROMPTS = 1_000_000


def read_prompts_file(path: str | Path) -> list[str]:
    """Read one prompt per line, stripped. Empty lines and lines that begin with ``#`` are skipped.

    A prompt that is listed twice is drawn twice as often.

    Raises:
        DataError: the file cannot be read, is not UTF-8 text, is too large or holds no prompt.
    """
    file = Path(path)
    try:
        data = read_plain(file, MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise DataError(f"{file} is larger than {MAX_FILE_BYTES >> 20} MiB", "rlhf_prompts_file")
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}", "rlhf_prompts_file") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text", "rlhf_prompts_file", "save it as UTF-8") from error
    return prompts_of_text(text, file)


def prompts_of_text(text: str, file: str | Path) -> list[str]:
    """As ``read_prompts_file``, for a text.

    Args:
        file: its name in messages.

    Raises:
        DataError: it is not text, has no prompts or too many, or one that is too long.
    """
    if "\0" in text:
        raise DataError(f"{file} is not a text file", "rlhf_prompts_file")
    prompts = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if len(line) > MAX_PROMPT_LETTERS:
            raise DataError(
                f"{file}, line {number}: the prompt has {len(line)} characters; the maximum is {MAX_PROMPT_LETTERS}",
                "rlhf_prompts_file",
            )
        prompts.append(line)
    if not prompts:
        raise DataError(f"{file} holds no prompt", "rlhf_prompts_file", "write one prompt per line")
    if len(prompts) > MAX_PROMPTS:
        raise DataError(
            f"{file} holds {len(prompts)} prompts; the maximum is {MAX_PROMPTS}", "rlhf_prompts_file"
        )
    return prompts
