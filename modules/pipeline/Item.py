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
        sources: where the images are that it was made from by editing.
        source_like: the image whose shape the sources are cropped to; its own if empty.
    """

    path: str
    id: str
    key: str
    concept: int
    prompts: tuple[str, ...]
    sources: tuple[str, ...] = ()
    source_like: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """Every image file that is read for it."""
        return (self.path, *self.sources)
