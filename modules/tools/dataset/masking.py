"""Makes masks of a folder of images with any function that selects part of an image."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

import numpy
from PIL import Image, ImageColor, ImageFilter, ImageOps

from modules.tools.dataset.captioning import Outcome, Tell, opened_rgb
from modules.tools.dataset.files import DataImage, shared_files
from modules.tools.Journal import Journal
from modules.util.errors import ConfigError, DataError, list_offenders
from modules.util.image_metadata.limits import MAX_PIXELS
from modules.util.pairs.decoding import IMAGE_ERRORS

SUFFIX = "-masklabel.png"
SHAPE_TOLERANCE = 0.01
MAX_RADIUS = 500
WHITE_LEVEL = 255
MOST_BYTES = 255
"""Maximum length of a file name in bytes."""
WHITE, TRANSPARENT = "white", "transparent"

Select = Callable[[Image.Image], numpy.ndarray]
"""Maps an upright image to its selected pixels: booleans (height, width)."""


class Mode(StrEnum):
    """Ways of handling existing masks."""

    BLANK = "BLANK"
    REPLACE = "REPLACE"
    ADD = "ADD"
    SUBTRACT = "SUBTRACT"
    BLEND = "BLEND"


@dataclass(frozen=True)
class Wanted:
    """Options for making masks from selected pixels.

    Args:
        mode: BLANK makes only missing masks.
        invert: make the selected pixels black and the others white.
        smooth: radius in pixels of a median filter over squares.
        expand: pixels by which white grows; negative values shrink it.
        blur: radius in pixels of a Gaussian blur, applied last.
        alpha: share of the new mask with BLEND, 0 to 1.
    """

    mode: Mode = Mode.BLANK
    invert: bool = False
    smooth: int = 0
    expand: int = 0
    blur: float = 0
    alpha: float = 0.5

    def check(self) -> None:
        """Raises:
        ConfigError: a value is out of range.
        """
        limits = (
            ("--smooth", self.smooth, 0, MAX_RADIUS), ("--expand", self.expand, -MAX_RADIUS, MAX_RADIUS),
            ("--blur", self.blur, 0, MAX_RADIUS), ("--alpha", self.alpha, 0, 1),
        )  # fmt: skip
        for name, value, least, most in limits:
            if not least <= value <= most:
                raise ConfigError(f"{value} is not between {least} and {most}", name)


def colour_range(colour: str, tolerance: int) -> Select:
    """Select the pixels whose channels all differ by at most ``tolerance`` from a colour; for
    ``transparent``, those with an opacity of at most ``tolerance``.

    Args:
        colour: a name or ``#rrggbb``.
        tolerance: levels, 0 to 255.

    Raises:
        ConfigError: a value is invalid.
    """
    if not 0 <= tolerance <= 255:
        raise ConfigError(f"{tolerance} is not between 0 and 255", "--tolerance")
    if colour == TRANSPARENT:
        return lambda image: _alpha(image) <= tolerance
    try:
        wanted = ImageColor.getrgb(colour)[:3]
    except ValueError:
        hint = f"give #rrggbb, a name such as {WHITE}, or {TRANSPARENT}"
        raise ConfigError(f"{colour!r} is not a colour", "--color", hint) from None

    def select(image: Image.Image) -> numpy.ndarray:
        planes = [numpy.asarray(plane).astype(numpy.int16) for plane in image.convert("RGB").split()]
        near = [abs(plane - level) <= tolerance for plane, level in zip(planes, wanted, strict=True)]
        return near[0] & near[1] & near[2]

    return select


def plan_masks(root: Path, images: list[DataImage], mode: Mode) -> list[DataImage]:
    """The images that get a mask.

    Raises:
        DataError: images share a mask.
    """
    shared = shared_files([DataImage(one.name, (f"{one.stem}{SUFFIX}",)) for one in images])
    if shared:
        raise DataError(
            f"several images have the same mask:\n{list_offenders(shared)}",
            hint="rename all but one of each",
        )
    return [one for one in images if mode is not Mode.BLANK or not is_there(root / mask_name(one))]


def write_masks(root: Path, plan: list[DataImage], wanted: Wanted, select: Select, progress: Tell) -> Outcome:
    """Make and write masks one by one. Written masks stay after a stop or a kill.

    Args:
        progress: called with the number of images done and the name of the next.

    Raises:
        UserError: selecting failed. ``Journal.undo`` undoes what was written before.
    """
    wanted.check()
    outcome = Outcome([], {})
    with Journal(root).job("masks") as job:
        for number, one in enumerate(plan):
            progress(number, one.name)
            try:
                old, mask = _mask_of(root, one, wanted, select)
            except DataError as error:
                outcome.left[one.name] = error.message
                continue
            job.replace(old, {mask_name(one): partial(save_mask, mask)})
            outcome.written.append(one.name)
    return outcome


def shaped(chosen: numpy.ndarray, wanted: Wanted) -> numpy.ndarray:
    """Convert selected pixels to a mask, 0 to 255: inverted, smoothed, expanded or shrunk, and blurred, in
    this order.
    """
    white = ~chosen if wanted.invert else chosen
    if wanted.smooth:
        white = 2 * _counts(white, wanted.smooth) > (2 * wanted.smooth + 1) ** 2
    if wanted.expand > 0:
        white = _counts(white, wanted.expand) > 0
    if wanted.expand < 0:
        white = _counts(~white, -wanted.expand) == 0
    mask = white.astype(numpy.uint8) * numpy.uint8(255)
    if wanted.blur:
        mask = numpy.asarray(Image.fromarray(mask).filter(ImageFilter.GaussianBlur(wanted.blur)))
    return mask


def joined(old: numpy.ndarray | None, new: numpy.ndarray, mode: Mode, alpha: float) -> numpy.ndarray:
    """Combine a new mask with the old one. Without an old one, ADD and BLEND give the new one, and SUBTRACT
    subtracts it from white.
    """
    if mode is Mode.SUBTRACT:
        left = 255 - new
        return left if old is None else numpy.minimum(old, left)
    if old is None or mode in (Mode.BLANK, Mode.REPLACE):
        return new
    if mode is Mode.ADD:
        both: numpy.ndarray = numpy.maximum(old, new)
        return both
    mixed = old.astype(numpy.float32) * (1 - alpha) + new.astype(numpy.float32) * alpha
    blended: numpy.ndarray = numpy.floor(mixed + 0.5).astype(numpy.uint8)
    return blended


def mask_name(image: DataImage) -> str:
    """The name of an image's mask file."""
    return f"{image.stem}{SUFFIX}"


def too_long(name: str) -> bool:
    """Return whether no file can have this name, because its last component is too long."""
    return len(os.fsencode(name.rpartition("/")[2])) > MOST_BYTES


def is_there(path: Path) -> bool:
    """Return whether a file, folder or link exists; false if its name would be too long."""
    try:
        return os.path.lexists(path)
    except OSError:
        return False


def _mask_of(root: Path, one: DataImage, wanted: Wanted, select: Select) -> tuple[list[str], Image.Image]:
    """The new mask of an image, and the file to remove for it, if any.

    Raises:
        DataError: the image or its mask is unreadable, or they do not match.
    """
    target = root / mask_name(one)
    if too_long(target.name):
        raise DataError("its name is too long to have a mask next to it; shorten it")
    there = is_there(target)
    if there and (wanted.mode is Mode.BLANK or not target.is_file()):
        raise DataError("it has a mask now" if target.is_file() else f"{target.name} is not a file")
    image = opened_image(root / one.name)
    keeps = there and wanted.mode is not Mode.REPLACE
    old = fitting(opened_mask(target), image.size, target.name) if keeps else None
    new = shaped(select(image), wanted)
    return [mask_name(one)] if there else [], Image.fromarray(joined(old, new, wanted.mode, wanted.alpha))


def opened_image(path: Path) -> Image.Image:
    """Open an image upright, with its transparency, if any.

    Raises:
        DataError: it is unreadable or too large.
    """
    with _opened(path) as opened:
        clear = opened.mode in ("RGBA", "LA", "PA") or "transparency" in opened.info
        alpha = ImageOps.exif_transpose(opened).convert("RGBA").getchannel("A") if clear else None
        image = opened_rgb(path)
    if alpha is not None:
        image.putalpha(alpha)
    return image


def opened_mask(path: Path) -> Image.Image:
    """Open a mask upright, in 256 grey levels as in training. Transparent areas are black.

    Raises:
        DataError: it is unreadable or too large.
    """
    with _opened(path) as opened:
        mask = ImageOps.exif_transpose(opened)
        if mask.mode.startswith("I;16"):
            return Image.fromarray(numpy.floor(numpy.asarray(mask) / 257 + 0.5).astype(numpy.uint8))
        if mask.mode in ("I", "F"):
            levels = numpy.nan_to_num(numpy.asarray(mask, numpy.float64), posinf=0.0, neginf=0.0).clip(0)
            top = float(levels.max(initial=0.0))
            white = next((level for level in (1.0, 255.0, 65535.0) if top <= level), top)
            return Image.fromarray(numpy.floor(levels * (255 / white) + 0.5).astype(numpy.uint8))
        if mask.mode in ("RGBA", "LA", "PA") or "transparency" in mask.info:
            clear = mask.convert("RGBA")
            mask = Image.alpha_composite(Image.new("RGBA", clear.size, (0, 0, 0, 255)), clear)
        return mask.convert("RGB").convert("L")


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open an image or mask for the duration of a block. Raises ``DataError`` if it is unreadable or too large."""
    try:
        with Image.open(path) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise DataError(f"{path.name} is too large: {opened.width} x {opened.height} pixels")
            yield opened
    except DataError:
        raise
    except IMAGE_ERRORS as error:
        raise DataError(f"{path.name} is unreadable: {error}") from error


def _alpha(image: Image.Image) -> numpy.ndarray:
    if image.mode == "RGBA":
        return numpy.asarray(image.getchannel("A"))
    return numpy.full((image.height, image.width), 255, numpy.uint8)


def fitting(mask: Image.Image, size: tuple[int, int], name: str) -> numpy.ndarray:
    """Scale a mask to the size of its image.

    Raises:
        DataError: their shapes differ.
    """
    width, height = size
    if abs(mask.width * height / (mask.height * width) - 1) > SHAPE_TOLERANCE:
        raise DataError(f"the shape of {name} is not that of its image")
    if mask.size != size:
        mask = mask.resize(size, Image.Resampling.BILINEAR)
    return numpy.asarray(mask)


def _counts(chosen: numpy.ndarray, radius: int) -> numpy.ndarray:
    """Number of selected pixels in the square of 2 ``radius`` + 1 around each. Edge pixels are repeated outside."""
    found = chosen
    for axis in (0, 1):
        ends = [(0, 0), (0, 0)]
        ends[axis] = (radius + 1, radius)
        sums = numpy.cumsum(numpy.pad(found, ends, mode="edge"), axis=axis, dtype=numpy.int32)
        length, reach = found.shape[axis], 2 * radius + 1
        found = sums.take(range(reach, reach + length), axis) - sums.take(range(length), axis)
    return found


def save_mask(mask: Image.Image, target: Path) -> None:
    """Write a mask as PNG, for ``Job.replace``."""
    mask.save(target, "PNG")
