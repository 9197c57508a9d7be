"""From an image to the pixels of its bucket: crop, scale, and the augmentations of standard concepts.

A transform is first determined as a ``Transform``. Its text is part of the cache key, so that two ways to the
same pixels share one cache entry, and any change of settings makes a new one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance

from modules.util.rng import python_random

VERSION = 1
"""Increased whenever the same ``Transform`` gives other pixels than before."""

AMOUNTS = {
    name: (f"enable_fixed_{name}", f"enable_random_{name}", f"random_{name}_max_{unit}")
    for name, unit in (
        ("rotate", "angle"),
        ("brightness", "strength"),
        ("contrast", "strength"),
        ("saturation", "strength"),
        ("hue", "strength"),
    )
}
"""Names of settings of an augmentation: always applied, applied at random, and by how much."""

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Transform:
    """Everything that is done to an image, in the order of the fields.

    Args:
        size: (height, width) of the result.
        flip: mirrored left to right.
        angle: counter-clockwise rotation in degrees; the crop shrinks so that no corner is empty.
        offset: position of the crop in the remaining space, (x, y) from 0 to 1; the middle is 0.5.
        brightness, contrast, saturation: factors, 1 changes nothing.
        hue: rotation of the colour circle as a fraction of it; 0 changes nothing.
        focus: centre of the crop instead of ``offset``: x and y relative to width and height before the
            rotation, and its size relative to the largest crop.
        shrink: applies only to the image's mask, see ``loss_masks.aiming.shrunk``.
    """

    size: tuple[int, int]
    flip: bool = False
    angle: float = 0.0
    offset: tuple[float, float] = (0.5, 0.5)
    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue: float = 0.0
    focus: tuple[float, float, float] | None = None
    shrink: tuple[float, float] | None = None

    def text(self) -> str:
        """A text that is equal for transforms with the same effect on the image, on every machine."""
        looks = (
            self.size, self.flip, self.angle, self.offset, self.brightness, self.contrast, self.saturation, self.hue,
        )  # fmt: skip
        return f"{VERSION}:{looks if self.focus is None else (*looks, self.focus)!r}"


def decide_transform(
    size: tuple[int, int], augment: Any | None, seed: int, item: str, variation: int
) -> Transform:
    """The transform of an image in standard concepts, determined by the concept's seed, the item and the
    variation.

    Args:
        size: (height, width) of the bucket.
        augment: the concept's image settings; ``None`` switches every augmentation off.
    """
    if augment is None:
        return Transform(size)

    def stream(name: str) -> Random:
        # one stream per decision, so that enabling one augmentation leaves the others unchanged
        return python_random(f"augment/{name}", seed, item, variation)

    def amount(name: str) -> float:
        fixed, random, maximum = AMOUNTS[name]
        if getattr(augment, fixed):
            return float(getattr(augment, maximum))
        if getattr(augment, random):
            top = float(getattr(augment, maximum))
            return stream(name).uniform(-top, top)
        return 0.0

    offset = (0.5, 0.5)
    if augment.enable_crop_jitter:
        source = stream("crop")
        offset = (source.random(), source.random())
    flip = bool(augment.enable_fixed_flip) or (
        bool(augment.enable_random_flip) and stream("flip").random() < 0.5
    )
    return Transform(
        size=size,
        flip=flip,
        angle=amount("rotate"),
        offset=offset,
        brightness=max(0.0, 1.0 + amount("brightness")),
        contrast=max(0.0, 1.0 + amount("contrast")),
        saturation=max(0.0, 1.0 + amount("saturation")),
        # a strength of 1 is half a turn
        hue=amount("hue") / 2,
    )


def apply_transform(image: Image.Image, transform: Transform) -> Pixels:
    """The pixels of an RGB image after ``transform``: (H, W, 3) uint8."""
    if transform.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    box = crop_box(image.size, transform)
    if transform.angle:
        image = image.rotate(transform.angle, Image.Resampling.BICUBIC)
    height, width = transform.size
    image = image.resize((width, height), Image.Resampling.LANCZOS, box=box)
    for kind, factor in (
        (ImageEnhance.Brightness, transform.brightness),
        (ImageEnhance.Contrast, transform.contrast),
        (ImageEnhance.Color, transform.saturation),
    ):
        if factor != 1.0:
            image = kind(image).enhance(factor)
    if transform.hue:
        image = _turn_hue(image, transform.hue)
    return np.array(image, dtype=np.uint8)


def crop_box(image_size: tuple[int, int], transform: Transform) -> tuple[float, float, float, float]:
    """The part of a (width, height) image that is kept: the largest of the bucket's aspect ratio, moved by
    the offset; for a rotated image the largest centred one without empty corners. With a focus, it has the
    focus's size and is as near to it as the edges allow.
    """
    width, height = image_size
    target_h, target_w = transform.size
    scale = min(width / target_w, height / target_h)
    scale *= transform.focus[2] if transform.focus else 1.0
    crop_w, crop_h = target_w * scale, target_h * scale
    inner_w, inner_h = float(width), float(height)
    if transform.angle:
        cos, sin = abs(math.cos(math.radians(transform.angle))), abs(math.sin(math.radians(transform.angle)))
        # the pixels at the very edge are blended with the empty area outside
        inner_w, inner_h = max(1.0, width - 3), max(1.0, height - 3)
        shrink = min(1.0, inner_w / (crop_w * cos + crop_h * sin), inner_h / (crop_w * sin + crop_h * cos))
        crop_w, crop_h = crop_w * shrink, crop_h * shrink
    if transform.focus:
        x, y = _nearest_middle(image_size, (inner_w, inner_h), (crop_w, crop_h), transform)
        left, top = (width - crop_w) / 2 + x, (height - crop_h) / 2 + y
    elif transform.angle:
        left, top = (width - crop_w) / 2, (height - crop_h) / 2
    else:
        left, top = (width - crop_w) * transform.offset[0], (height - crop_h) * transform.offset[1]
    return max(0.0, left), max(0.0, top), min(float(width), left + crop_w), min(float(height), top + crop_h)


def _nearest_middle(
    size: tuple[int, int], inner: tuple[float, float], crop: tuple[float, float], transform: Transform
) -> tuple[float, float]:
    """The centre of a crop near the focus, relative to the centre of the rotated image, that leaves no corner
    empty.
    """
    assert transform.focus is not None
    angle = math.radians(transform.angle)
    (width, height), (crop_w, crop_h) = size, crop
    cos, sin = abs(math.cos(angle)), abs(math.sin(angle))
    # along the sides of the image
    room_x = max(0.0, inner[0] - crop_w * cos - crop_h * sin) / 2
    room_y = max(0.0, inner[1] - crop_w * sin - crop_h * cos) / 2
    x, y = (transform.focus[0] - 0.5) * width, (transform.focus[1] - 0.5) * height
    x, y = turned(max(-room_x, min(room_x, x)), max(-room_y, min(room_y, y)), angle)
    # what a rotation moves over the edge is lost
    rooms = ((abs(x), (width - crop_w) / 2), (abs(y), (height - crop_h) / 2))
    share = min([1.0, *(max(0.0, room) / way for way, room in rooms if way > room)])
    return x * share, y * share


def turned(x: float, y: float, angle: float) -> tuple[float, float]:
    """Rotate a point about the origin, counter-clockwise as displayed, with y pointing down.

    Args:
        angle: in radians.
    """
    return x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)


def crop_geometry(
    image_size: tuple[int, int], transform: Transform
) -> tuple[float, float, float, float, float, float]:
    """The size conditioning of an image: its original (height, width), the top and left of the crop in pixels
    after scaling, and the (height, width) of the result.

    Args:
        image_size: (width, height).

    As Stable Diffusion XL was trained (Podell et al. 2023, arXiv 2307.01952, section 2.2): the image is first
    scaled and then cropped, so offsets count pixels of the scaled image.
    """
    width, height = image_size
    left, top, right, bottom = crop_box(image_size, transform)
    target_h, target_w = transform.size
    shift_y = round(top * target_h / (bottom - top))
    shift_x = round(left * target_w / (right - left))
    return float(height), float(width), float(shift_y), float(shift_x), float(target_h), float(target_w)


def _turn_hue(image: Image.Image, turn: float) -> Image.Image:
    hsv = np.array(image.convert("HSV"), dtype=np.uint8)
    hsv[..., 0] = (hsv[..., 0].astype(np.int64) + round(turn * 256)) % 256
    return Image.fromarray(hsv, "HSV").convert("RGB")
