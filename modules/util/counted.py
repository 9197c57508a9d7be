"""Numbers with nouns for display. All plurals are formed here."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 pair``, ``2 pairs``, ``1,200 pairs``.

    Args:
        number: how many.
        noun: the singular.
        plural: the form for every other number; by default ``noun`` and an s.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
