"""Numbers and durations for display. All plurals are formed here."""

from __future__ import annotations

import argparse
import atexit
import io
import os
import sys
from types import TracebackType

READER_ENDED = 141
"""Exit status of a command whose work ended because nobody reads its output, as a shell gives it (128 + SIGPIPE)."""
INTERRUPTED = 130
"""Exit status of a command that was stopped with Ctrl+C, as a shell gives it (128 + SIGINT)."""


def print_any_text() -> None:
    r"""Let a command print file names and prompts that the encoding of its output lacks, as ``\u732b``, instead of
    ending with an error: output to a file or pipe has few characters on Windows.

    If the program that reads the output ends first, as ``head`` does, the command ends without a message, with the
    status ``READER_ENDED`` if it was still printing. Ctrl+C ends it with the word "stopped" and ``INTERRUPTED``.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.excepthook = _end
    atexit.register(_drop_unread)


def command_parser(about: str | None, name: str | None = None) -> argparse.ArgumentParser:
    """The parser of a command whose help shows the text ``about`` as it is; ``name`` is by default that of the file."""
    return argparse.ArgumentParser(name, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # the error of another pipe or of a connection is told, after an empty line
    if isinstance(error, BrokenPipeError) and _drop_unread("\n"):
        raise SystemExit(READER_ENDED)
    if isinstance(error, KeyboardInterrupt):
        if sys.stderr is not None:
            sys.stderr.write("stopped\n")
        raise SystemExit(INTERRUPTED)
    sys.__excepthook__(kind, error, trace)


def _drop_unread(text: str = "") -> bool:
    """Return whether nobody reads the output any more. What is left of it is then dropped, or Python would complain."""
    if sys.stdout is None or sys.stdout.closed:
        return False
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


_UNSAFE = {
    code: chr(code).encode("unicode_escape").decode()
    for code in (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\n\t"
}


def harmless(text: str) -> str:
    r"""A text in which no character controls the terminal or reverses the order of others: ``\x1b`` for the escape
    character.
    """
    return text.replace("\r\n", "\n").translate(_UNSAFE)


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 pair``, ``2 pairs``, ``1,200 pairs``.

    Args:
        number: how many.
        noun: the singular.
        plural: the form for every other number; by default ``noun`` and an s.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def duration(seconds: float) -> str:
    """``1:02:03``, or ``2:03`` below an hour."""
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
