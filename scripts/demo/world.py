"""A small world of drawn shapes: what the demo model learns, and the ground truth its judge is tested on.

Every scene is one shape on a flat background, 64x64 pixels, with a caption. What a caption leaves out (size,
position, brightness) varies widely: that is the room for preference.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from modules.util.errors import DataError
from modules.util.rng import digest64, python_random

SIZE = 64
SUPERSAMPLING = 4

SHAPES = ("circle", "square", "triangle", "cross")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (225, 40, 40),
    "green": (40, 180, 60),
    "blue": (45, 75, 230),
    "yellow": (240, 220, 50),
    "purple": (160, 50, 200),
    "white": (245, 245, 245),
}
BACKGROUNDS: dict[str, tuple[int, int, int]] = {**COLOURS, "black": (18, 18, 18)}
SIZES = {"small": (12.0, 14.0), "medium": (16.0, 19.0), "large": (21.0, 24.0)}
POSITIONS = {"left": (-1, 0), "right": (1, 0), "top": (0, -1), "bottom": (0, 1)}
BRIGHTNESS = {"dark": (0.65, 0.73), "bright": (0.92, 1.0)}
RADIUS_RANGE = (12.0, 24.0)
FARTHEST = 10.0
"""Greatest distance in pixels between the centres of a shape and of its image along each axis."""
BRIGHTNESS_RANGE = (0.65, 1.0)
HELD_OUT_SHARE = 0.15

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Wish:
    """The content of a caption; ``None`` means left open."""

    shape: str
    colour: str
    background: str
    size: str | None = None
    position: str | None = None
    brightness: str | None = None

    def caption(self) -> str:
        """This wish as one sentence."""
        words = [w for w in (self.size, self.brightness, self.colour, self.shape) if w]
        text = f"a {' '.join(words)} on a {self.background} background"
        return f"{text}, {self.position}" if self.position else text

    @classmethod
    def parse(cls, caption: str) -> Wish:
        """Parse a caption into a wish; the inverse of ``caption``.

        Raises:
            DataError: the text is not a sentence of this world.
        """
        found = _SENTENCE.fullmatch(" ".join(caption.lower().split()))
        if found is None:
            raise DataError(
                f"{caption!r} is not a sentence of the demo's world",
                hint='for example: "a large red circle on a blue background, left"',
            )
        names = ("shape", "colour", "background", "size", "position", "brightness")
        return cls(*(found[name] for name in names))


def _any_of(name: str, words: Iterable[str]) -> str:
    return f"(?P<{name}>{'|'.join(words)})"


_SENTENCE = re.compile(
    f"a (?:{_any_of('size', SIZES)} )?(?:{_any_of('brightness', BRIGHTNESS)} )?{_any_of('colour', COLOURS)} "
    f"{_any_of('shape', SHAPES)} on a {_any_of('background', BACKGROUNDS)} background"
    f"(?:, {_any_of('position', POSITIONS)})?"
)


@dataclass(frozen=True)
class Scene:
    """A drawn scene: radius and centre in pixels, brightness as a factor on the colour."""

    wish: Wish
    radius: float
    x: float
    y: float
    brightness: float


def is_held_out(wish: Wish) -> bool:
    """Return whether this combination of shape, colour and background is held out from training."""
    key = digest64("held-out", wish.shape, wish.colour, wish.background)
    return key % 1000 < HELD_OUT_SHARE * 1000


def combinations(held_out: bool) -> list[Wish]:
    """All (shape, colour, background) of one side of the split, in a fixed order."""
    made = [Wish(s, c, b) for s in SHAPES for c in COLOURS for b in BACKGROUNDS if c != b]
    return [wish for wish in made if is_held_out(wish) == held_out]


def draw_wish(rng: random.Random, held_out: bool, open_attributes: bool = False) -> Wish:
    """Draw a random wish; with ``open_attributes`` it names only shape, colour and background."""
    base = rng.choice(combinations(held_out))
    if open_attributes:
        return base
    return Wish(
        base.shape,
        base.colour,
        base.background,
        rng.choice(list(SIZES)) if rng.random() < 0.4 else None,
        rng.choice(list(POSITIONS)) if rng.random() < 0.3 else None,
        rng.choice(list(BRIGHTNESS)) if rng.random() < 0.3 else None,
    )


def draw_scene(wish: Wish, rng: random.Random) -> Scene:
    """Fill in what the wish leaves open."""
    radius = rng.uniform(*(SIZES[wish.size] if wish.size else RADIUS_RANGE))
    brightness = rng.uniform(*(BRIGHTNESS[wish.brightness] if wish.brightness else BRIGHTNESS_RANGE))
    free = min(SIZE / 2 - 3.0 - radius, FARTHEST)
    x, y = rng.uniform(-free, free), rng.uniform(-free, free)
    if wish.position:
        dx, dy = POSITIONS[wish.position]
        far = rng.uniform(0.6, 1.0) * free
        x = dx * far if dx else x * 0.3
        y = dy * far if dy else y * 0.3
    return Scene(wish, radius, SIZE / 2 + x, SIZE / 2 + y, brightness)


def shape_mask(shape: str, radius: float, x: float, y: float, size: int = SIZE) -> npt.NDArray[np.float32]:
    """Coverage (size, size) in [0, 1] of a shape, anti-aliased."""
    k = SUPERSAMPLING
    image = Image.new("L", (size * k, size * k), 0)
    draw = ImageDraw.Draw(image)
    left, top, right, bottom = ((v * k) for v in (x - radius, y - radius, x + radius, y + radius))
    if shape == "circle":
        draw.ellipse((left, top, right - 1, bottom - 1), fill=255)
    elif shape == "square":
        draw.rectangle((left, top, right - 1, bottom - 1), fill=255)
    elif shape == "triangle":
        draw.polygon([(x * k, top), (right - 1, bottom - 1), (left, bottom - 1)], fill=255)
    elif shape == "cross":
        arm = radius * k * 0.36
        draw.rectangle((x * k - arm, top, x * k + arm - 1, bottom - 1), fill=255)
        draw.rectangle((left, y * k - arm, right - 1, y * k + arm - 1), fill=255)
    else:
        raise ValueError(f"unknown shape {shape!r}")
    small = image.resize((size, size), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32) / 255.0


def render(scene: Scene) -> Pixels:
    """Pixels (64, 64, 3) of a scene."""
    mask = shape_mask(scene.wish.shape, scene.radius, scene.x, scene.y)[..., None]
    front = np.array(COLOURS[scene.wish.colour], dtype=np.float32) * scene.brightness
    back = np.array(BACKGROUNDS[scene.wish.background], dtype=np.float32)
    made: Pixels = np.round(mask * front + (1.0 - mask) * back).astype(np.uint8)
    return made


def make_example(seed: int, index: int, held_out: bool = False) -> tuple[Pixels, Scene]:
    """Example ``index`` of the data set ``seed``: pixels (64, 64, 3) and its scene."""
    rng = python_random("demo-example", seed, index, held_out)
    scene = draw_scene(draw_wish(rng, held_out), rng)
    return render(scene), scene
