"""Checks that an image can be decoded completely."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from modules.util.errors import DataError

MAX_PIXELS = 128 * 1024 * 1024

# exceptions of Pillow's decoders on damaged files
IMAGE_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    ArithmeticError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
_AT_ONCE = 32


class UndecodableImage(DataError):
    """An image that cannot be decoded completely.

    Args:
        reason: the message of the decoder.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} cannot be decoded: {reason}",
            hint="the file is truncated or damaged: replace or remove it",
        )
        self.path = path


def check_decodes(image: Path, source: Path | None = None) -> None:
    """Check that an image can be decoded completely.

    Args:
        source: its name in the error, if the file is a copy.

    Raises:
        UndecodableImage: it is truncated, damaged, not an image, or larger than ``MAX_PIXELS``.
    """
    try:
        with Image.open(image) as opened:
            width, height = opened.size
            if width * height > MAX_PIXELS:
                raise UndecodableImage(source or image, f"more than {MAX_PIXELS} pixels")
            opened.load()
    except UndecodableImage:
        raise
    except UnidentifiedImageError:
        raise UndecodableImage(source or image, "not an image") from None
    except IMAGE_ERRORS as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or repr(error)
        raise UndecodableImage(source or image, reason) from error


def undecodable(images: Sequence[Path]) -> Iterator[UndecodableImage | None]:
    """The fault of each of many images, in order, decoded on all cores."""
    with ThreadPoolExecutor(min(_AT_ONCE, os.cpu_count() or 1)) as pool:
        yield from pool.map(_fault_of, images)


def _fault_of(image: Path) -> UndecodableImage | None:
    try:
        check_decodes(image)
    except UndecodableImage as error:
        return error
    return None
