"""The person of the demo: somebody who likes some images better than others, and says so with a few slips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import hypot

from modules.util.errors import ConfigError
from modules.util.rng import python_random
from scripts.demo.judge import Reading, matches
from scripts.demo.world import BACKGROUNDS, BRIGHTNESS_RANGE, COLOURS, RADIUS_RANGE, SIZE, Wish


@dataclass(frozen=True)
class Taste:
    """A taste: a number computed from an image's reading.

    Args:
        name: on the command line.
        likes: for the report ("large shapes").
        attribute: what ``value`` measures.
        value: the liked attribute, about 0 to 1.
    """

    name: str
    likes: str
    attribute: str
    value: Callable[[Reading], float]

    def score(self, reading: Reading, wish: Wish) -> float:
        """Return the liking of an image: by taste among images that show what was asked for; all others are
        below.

        The second part is what keeps a taste from being served by images of something else.
        """
        shown = all(matches(reading, wish).values())
        return self.value(reading) if shown else self.value(reading) - 2.0


def _place(value: float, low: float, high: float) -> float:
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _largeness(reading: Reading) -> float:
    return _place(reading.size, *(2 * radius / SIZE for radius in RADIUS_RANGE))


def _lightness(reading: Reading) -> float:
    return _place(reading.brightness, *BRIGHTNESS_RANGE)


def _warmth(reading: Reading) -> float:
    """Tone of a colour: warm reds are closer to orange, warm blues closer to violet."""
    return _place(reading.warmth, -0.1, 0.1)


def _centredness(reading: Reading) -> float:
    """1 in the middle, falling off in every direction."""
    return 1.0 - _place(hypot(reading.x - 0.5, reading.y - 0.5), 0.0, 0.2)


def _calmness(reading: Reading) -> float:
    """Return how little the shape differs from its background, compared with images of the same two colours."""
    if reading.colour is None:
        return 0.0
    colour, background = COLOURS[reading.colour], BACKGROUNDS[reading.background]

    def contrast(brightness: float) -> float:
        return sum(abs(c * brightness - b) for c, b in zip(colour, background, strict=True)) / (3 * 255)

    usual = contrast(sum(BRIGHTNESS_RANGE) / 2)
    return _place(usual - contrast(reading.brightness), -0.1, 0.1)


TASTES: dict[str, Taste] = {
    taste.name: taste
    for taste in (
        Taste("large", "large shapes", "size", _largeness),
        Taste("small", "small shapes", "size", lambda r: 1.0 - _largeness(r)),
        Taste("bright", "bright shapes", "brightness", _lightness),
        Taste("left", "shapes on the left", "left", lambda r: 1.0 - r.x),
        Taste(
            "large-bright",
            "large and bright shapes",
            "size and brightness",
            lambda r: 0.5 * (_largeness(r) + _lightness(r)),
        ),
        Taste("warm", "warm tones", "warmth", _warmth),
        Taste("centred", "shapes in the middle", "centredness", _centredness),
        Taste("calm", "little contrast", "calmness", _calmness),
    )
}
"""All tastes concern things that a prompt may leave open, so that following the prompt and the taste do not
conflict.
"""


def get_taste(name: str) -> Taste:
    """The taste of that name; ``ConfigError`` if there is none."""
    if name not in TASTES:
        raise ConfigError(f"unknown taste {name!r}", field="--taste", hint=f"known: {', '.join(TASTES)}")
    return TASTES[name]


class Person:
    """Answers questions about two images.

    Args:
        taste: what the person likes.
        seed: of the slips.
        error_rate: share of the answers that are the wrong way round, 0 to below 0.5.
        indifference: scores nearer to each other than this are a tie.
    """

    def __init__(self, taste: Taste, seed: int, error_rate: float = 0.0, indifference: float = 0.03) -> None:
        if not 0.0 <= error_rate < 0.5:
            raise ConfigError(f"{error_rate} is not between 0 and 0.5", field="--error-rate")
        self.taste, self.error_rate, self.indifference = taste, error_rate, indifference
        self._seed = seed

    def prefer(self, first: float, second: float, *question: int | str) -> int | None:
        """0 for the first, 1 for the second, ``None`` for a tie.

        Args:
            first, second: scores of the two images.
            question: names the question; the same one always gets the same answer.
        """
        if abs(first - second) < self.indifference:
            return None
        slips = python_random("demo-person", self._seed, *question).random() < self.error_rate
        return int((second > first) != slips)
