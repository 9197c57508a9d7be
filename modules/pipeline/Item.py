"""What is known about an image before it is decoded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Item:
    """One image of one concept.

    Args:
        path: where it is.
        id: stable name, unique in a run and free of machine paths: ``concept/sub/name.png``. It keys
            whatever is random about the image.
        key: path below the concept's folder without extension; matches chosen to rejected.
        concept: index of its concept.
        prompts: alternative captions, at least one.
    """

    path: str
    id: str
    key: str
    concept: int
    prompts: tuple[str, ...]
