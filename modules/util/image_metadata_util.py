"""The door to prompts in image files."""

from __future__ import annotations

from modules.util.image_metadata.reader import ImageMetadata, read_metadata

__all__ = ["ImageMetadata", "read_metadata"]
