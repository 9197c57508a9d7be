"""Masks of a folder of images, made by whatever says which part of an image counts."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy
from PIL import Image, ImageColor, ImageFilter, ImageOps

from modules.tools.dataset.captioning import opened_rgb
from modules.tools.dataset.files import DataImage, shared_files
from modules.tools.Journal import Journal
from modules.util.errors import ConfigError, DataError, list_offenders
from modules.util.image_metadata.limits import MAX_PIXELS

SUFFIX = "-masklabel.png"
SHAPE_TOLERANCE = 0.01
MAX_RADIUS = 500
WHITE_LEVEL = 255
MOST_BYTES = 255
"""Of a file's name."""
WHITE, TRANSPARENT = "white", "transparent"
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)

Select = Callable[[Image.Image], numpy.ndarray]
"""An image, upright, to its chosen pixels: booleans (height, width)."""
Tell = Callable[[int, str], None]


class Mode(StrEnum):
    """What becomes of masks that are there."""

    BLANK = "BLANK"
    REPLACE = "REPLACE"
    ADD = "ADD"
    SUBTRACT = "SUBTRACT"
    BLEND = "BLEND"


@dataclass(frozen=True)
class Wanted:
    """How masks are made of the chosen pixels.

    Args:
        mode: BLANK makes missing masks alone.
        invert: the chosen pixels are black, the others white.
        smooth: radius in pixels of a median filter over squares.
        expand: pixels by which white grows; negative: shrinks.
        blur: radius in pixels of a Gaussian blur, last of all.
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


class Outcome(NamedTuple):
    """Names of images: those with a new mask, and those left as they are with the reason."""

    written: list[str]
    left: dict[str, str]


def colour_range(colour: str, tolerance: int) -> Select:
    """Chooses the pixels of which no channel is further than ``tolerance`` from a colour; of ``transparent`` those
    whose opacity is at most ``tolerance``.

    Args:
        colour: a name or ``#rrggbb``.
        tolerance: levels, 0 to 255.

    Raises:
        ConfigError: either is not one.
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
    """Make and write the masks one by one; what is written stays after a stop or a kill.

    Args:
        progress: called with how many images are done and the name of the next.

    Raises:
        UserError: choosing failed; ``Journal.undo`` takes back what was written before.
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
    """Chosen pixels as a mask, 0 to 255: turned round, smoothed, grown or shrunk, blurred, in this order."""
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
    """A new mask put onto the old one. Without an old one ADD and BLEND give the new one, and SUBTRACT takes it away
    from white."""
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
    """Of the file that says what of an image is learned."""
    return f"{image.stem}{SUFFIX}"


def too_long(name: str) -> bool:
    """Whether no file can have this name, of which only what is behind the folders counts."""
    return len(os.fsencode(name.rpartition("/")[2])) > MOST_BYTES


def is_there(path: Path) -> bool:
    """Whether there is a file, a folder or a link; there is none where its name would be too long."""
    try:
        return os.path.lexists(path)
    except OSError:
        return False


def _mask_of(root: Path, one: DataImage, wanted: Wanted, select: Select) -> tuple[list[str], Image.Image]:
    """The mask that an image gets, and the file to take out for it, if there is one.

    Raises:
        DataError: the image or its mask cannot be read, or they do not belong together.
    """
    target = root / mask_name(one)
    if too_long(target.name):
        raise DataError("its name is too long to have a mask next to it; shorten it")
    there = is_there(target)
    if there and (wanted.mode is Mode.BLANK or not target.is_file()):
        raise DataError("it has a mask by now" if target.is_file() else f"{target.name} is not a file")
    image = opened_image(root / one.name)
    keeps = there and wanted.mode is not Mode.REPLACE
    old = fitting(opened_mask(target), image.size, target.name) if keeps else None
    new = shaped(select(image), wanted)
    return [mask_name(one)] if there else [], Image.fromarray(joined(old, new, wanted.mode, wanted.alpha))


def opened_image(path: Path) -> Image.Image:
    """An image, upright; with its transparency, if it has some.

    Raises:
        DataError: it cannot be read or is too large.
    """
    try:
        with Image.open(path) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise DataError(f"{path.name} is too large: {opened.width} x {opened.height} pixels")
            clear = opened.mode in ("RGBA", "LA", "PA") or "transparency" in opened.info
            alpha = ImageOps.exif_transpose(opened).convert("RGBA").getchannel("A") if clear else None
        image = opened_rgb(path)
    except UNREADABLE as error:
        raise DataError(f"{path.name} is unreadable: {error}") from error
    if alpha is not None:
        image.putalpha(alpha)
    return image


def opened_mask(path: Path) -> Image.Image:
    """A mask, upright, in the 256 grey levels that training reads it with: what is transparent is black.

    Raises:
        DataError: it cannot be read or is too large.
    """
    try:
        with Image.open(path) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise DataError(f"{path.name} is too large: {opened.width} x {opened.height} pixels")
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
    except UNREADABLE as error:
        raise DataError(f"{path.name} is unreadable: {error}") from error


def _alpha(image: Image.Image) -> numpy.ndarray:
    if image.mode == "RGBA":
        return numpy.asarray(image.getchannel("A"))
    return numpy.full((image.height, image.width), 255, numpy.uint8)


def fitting(mask: Image.Image, size: tuple[int, int], name: str) -> numpy.ndarray:
    """A mask in the size of its image.

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
    """The number of chosen pixels in the square of 2 ``radius`` + 1 around each; edge pixels are repeated outside."""
    found = chosen
    for axis in (0, 1):
        ends = [(0, 0), (0, 0)]
        ends[axis] = (radius + 1, radius)
        sums = numpy.cumsum(numpy.pad(found, ends, mode="edge"), axis=axis, dtype=numpy.int32)
        length, reach = found.shape[axis], 2 * radius + 1
        found = sums.take(range(reach, reach + length), axis) - sums.take(range(length), axis)
    return found


def save_mask(mask: Image.Image, target: Path) -> None:
    """Write it as PNG; a rule of ``Job.replace``."""
    mask.save(target, "PNG")
