"""Pixel size of an image as displayed, from its header alone."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, UnidentifiedImageError

from modules.util.errors import DataError
from modules.util.pairs.decoding import IMAGE_ERRORS

_ORIENTATION = 0x0112


def image_size(path: Path) -> tuple[int, int]:
    """(width, height) with the EXIF orientation of JPEG and WebP applied; no pixel is decoded.

    Raises:
        DataError: the file is missing or not an image.
    """
    try:
        with Image.open(path) as image:
            width, height = image.size
            turned = image.format in ("JPEG", "WEBP") and image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
    except UnidentifiedImageError as error:
        raise DataError(f"{path} is not an image") from error
    except IMAGE_ERRORS as error:
        raise DataError(f"{path} cannot be read as an image: {error}") from error
    return (height, width) if turned else (width, height)
