"""Facts about an image before it is decoded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Item:
    """One image of one concept.

    Args:
        id: stable id, unique in a run and free of machine paths: ``concept/sub/name.png``. It keys everything
            random about the image.
        key: path below the concept's folder without extension; matches chosen to rejected.
        concept: index of its concept.
        prompts: alternative captions, at least one.
        sources: paths of its source images, if it is an edit.
        source_like: the image to whose shape the sources are cropped; empty means the image itself.
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
        """All image files read for it."""
        return (self.path, *self.sources)
