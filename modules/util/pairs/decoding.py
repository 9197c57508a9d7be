"""Whether the pixels of an image can be read, to the last one."""

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

# what Pillow's decoders raise on damaged files
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
    """An image of which not every pixel can be read.

    Args:
        path: the image.
        reason: what its decoder says.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} cannot be decoded: {reason}",
            hint="the file is truncated or damaged: replace or remove it",
        )
        self.path = path


def check_decodes(image: Path, source: Path | None = None) -> None:
    """Decode an image completely and forget it.

    Args:
        image: the file.
        source: how to call it in the error, if it is a copy.

    Raises:
        UndecodableImage: it is truncated, damaged, no image, or larger than ``MAX_PIXELS``.
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
    """What is wrong with each of many images, in their order, decoded on all cores."""
    with ThreadPoolExecutor(min(_AT_ONCE, os.cpu_count() or 1)) as pool:
        yield from pool.map(_fault_of, images)


def _fault_of(image: Path) -> UndecodableImage | None:
    try:
        check_decodes(image)
    except UndecodableImage as error:
        return error
    return None
