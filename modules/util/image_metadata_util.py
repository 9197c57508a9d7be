"""Public interface for prompts in image files."""

from __future__ import annotations

import os
from typing import Any

from modules.util.bucket import aspect_label
from modules.util.image_metadata.normalise import (
    UNCONDITIONAL,
    normalise_prompt,
    strip_angle_bracket_segments,
)
from modules.util.image_metadata.reader import ImageMetadata, read_metadata

__all__ = [
    "UNCONDITIONAL",
    "ImageMetadata",
    "extract_metadata",
    "normalise_prompt",
    "read_metadata",
    "strip_angle_bracket_segments",
]


def extract_metadata(path: str | os.PathLike[str], stealth: bool = False) -> dict[str, Any]:
    """The metadata of an image file as a dictionary.

    Args:
        path: PNG, JPEG, WebP or AVIF, detected by content.
        stealth: look for text hidden in the pixels if there is no other text.

    Returns:
        ``prompt`` (normalised, ``None`` without one), ``raw_prompt``, ``negative_prompt``, ``width``,
        ``height``, ``aspectratio`` (the aspect bucket of the pixels, empty if unknown), ``generator``, ``seed``,
        ``error``.
    """
    about = read_metadata(path, stealth=stealth)
    width, height = about.seen_size
    return {
        "prompt": None if about.prompt is None else normalise_prompt(about.prompt),
        "raw_prompt": about.prompt,
        "negative_prompt": about.negative_prompt,
        "width": width,
        "height": height,
        "aspectratio": aspect_label(width, height) if width and height else "",
        "generator": about.generator,
        "seed": about.seed,
        "error": about.error,
    }
