"""Decodes untrusted images: bounded, upright, opaque, eight bits, RGB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

from PIL import Image, UnidentifiedImageError

from modules.util.errors import DataError
from modules.util.pairs.decoding import IMAGE_ERRORS, MAX_PIXELS
from modules.util.pairs.grey_levels import eight_bits, is_deep

MAX_SIDE = 65_535
MIN_SIDE = 8
MAX_FILE_BYTES = 1 << 30
EDITION_ENDINGS = (".tif", ".tiff")
"""Endings of the files that ``reading_edition`` is about."""

_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
Path = str | PathLike[str]


def read_size(path: Path) -> tuple[int, int]:
    """(width, height) of an image as displayed, from its header alone.

    Raises:
        DataError: it is not a readable image, or of a refused size.
    """
    with _opened(path) as image:
        width, height = image.size
        if _orientation(image) >= 5:
            width, height = height, width
    _check_size(path, width, height)
    return width, height


def load_rgb(path: Path) -> Image.Image:
    """Decode an image completely to upright RGB, with transparent areas over white.

    16-bit and floating-point images are scaled to eight bits. Of an animation, the first frame is used.

    Raises:
        DataError: the file is damaged, truncated, or of a refused size.
    """
    return load_upright(path, _to_rgb)


def load_upright(path: Path, read: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Decode an image completely, and turn the result of ``read`` upright.

    Raises:
        DataError: the file is damaged, truncated, or of a refused size.
    """
    with _opened(path) as image:
        _check_size(path, *image.size)
        turn = _TURNS.get(_orientation(image))
        image.load()
        made = read(image)
        return made.transpose(turn) if turn is not None else made


def reading_edition(path: Path) -> str:
    """Text that is part of the key of everything made from a TIFF image whose reading has changed; empty for others.

    Raises:
        DataError: it is not a readable image.
    """
    with _opened(path) as image:
        return " read as 8 bits or 16" if image.mode == "I" else ""


def has_alpha(path: Path) -> bool:
    """Return whether an image has an alpha channel or a transparent colour, by its header.

    Raises:
        DataError: it is not a readable image.
    """
    with _opened(path) as image:
        return bool({"A", "a"} & set(image.getbands())) or "transparency" in image.info


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """An image whose decoding in the block may fail. Raises ``DataError`` then."""
    try:
        with Image.open(path) as image:
            yield image
    except DataError:
        raise
    except IMAGE_ERRORS as error:
        raise _fault(path, error) from error


def _fault(path: Path, error: BaseException) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path}: the file does not exist")
    if isinstance(error, UnidentifiedImageError):
        return DataError(f"{path}: not an image, or of a kind that cannot be read here")
    if isinstance(error, Image.DecompressionBombError):
        return DataError(f"{path}: more than {MAX_PIXELS} pixels")
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return DataError(f"{path}: cannot be decoded ({reason})")


def _check_size(path: Path, width: int, height: int) -> None:
    if min(width, height) < MIN_SIDE:
        raise DataError(f"{path}: {width}x{height} is too small: the minimum side is {MIN_SIDE}")
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise DataError(f"{path}: {width}x{height} is too large: the maximum is {MAX_PIXELS} pixels")


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, if it precedes the pixels, because reading more of a PNG would decode it.

    Pillow itself turns TIFF files.
    """
    if image.format == "TIFF":
        return 1
    if image.format == "PNG":
        raw = image.info.get("exif")
        if not raw:
            return 1
        exif = Image.Exif()
        exif.load(raw)
    else:
        exif = image.getexif()
    value: Any = exif.get(_ORIENTATION, 1)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if is_deep(image):
        return Image.fromarray(eight_bits(image)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        full = image.convert("RGBA")
        white = Image.new("RGBA", full.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, full).convert("RGB")
    return image.copy() if image.mode == "RGB" else image.convert("RGB")
