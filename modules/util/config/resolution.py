"""Resolutions as people type them: ``512`` or ``512, 768, 1024``."""

from __future__ import annotations

MIN_RESOLUTION = 32
MAX_RESOLUTION = 8192


def parse_resolutions(text: str) -> list[int]:
    """The numbers of a comma-separated list, in order, without repeats.

    Raises:
        ValueError: something in the list is not a whole number between 32 and 8192.
    """
    found: list[int] = []
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdigit()) or not MIN_RESOLUTION <= int(word[:9]) <= MAX_RESOLUTION:
            raise ValueError(
                f"must be whole numbers between {MIN_RESOLUTION} and {MAX_RESOLUTION} separated by commas, "
                f"not {text!r}"
            )
        if int(word) not in found:
            found.append(int(word))
    return found
