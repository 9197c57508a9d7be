"""Numbers and durations for display. All plurals are formed here."""

from __future__ import annotations

import io
import sys


def print_any_text() -> None:
    r"""Let a command print file names and prompts that the encoding of its output lacks, as ``\u732b``, instead of
    ending with an error: output to a file or pipe has few characters on Windows.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


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
