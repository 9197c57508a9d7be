"""The images that the rows of the benchmark ``taste`` share, and what the judge reads from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scripts.benchmarks._taste_spec import IMAGES_PER_PROMPT, JUDGED_PROMPTS, MOST_N, SURPLUS
from scripts.demo.judge import Reading, read_image
from scripts.demo.pairs import prompt_split
from scripts.demo.taste import Taste
from scripts.demo.world import SIZE, Pixels, Wish


@dataclass(frozen=True)
class Images:
    """Images in the order of their prompts."""

    wishes: list[Wish]
    pixels: list[Pixels]

    @property
    def prompts(self) -> list[str]:
        return [wish.caption() for wish in self.wishes]

    def readings(self) -> list[Reading]:
        """The judge's reading of each image."""
        return [_read(one.tobytes()) for one in self.pixels]

    def scores(self, taste: Taste) -> list[float]:
        """Scores of the images under a taste."""
        return [taste.score(one, wish) for one, wish in zip(self.readings(), self.wishes, strict=True)]

    def only(self, places: Sequence[int]) -> Images:
        """The images at these positions."""
        return Images([self.wishes[i] for i in places], [self.pixels[i] for i in places])

    def by_prompt(self) -> dict[str, list[int]]:
        """Indices of the images of each prompt."""
        found: dict[str, list[int]] = {}
        for place, prompt in enumerate(self.prompts):
            found.setdefault(prompt, []).append(place)
        return found


@lru_cache(maxsize=8192)
def _read(pixels: bytes) -> Reading:
    """Read an image once: reading is slower than anything else a head needs, and all rows of a seed share the
    result.
    """
    return read_image(np.frombuffer(pixels, np.uint8).reshape(SIZE, SIZE, 3))


def wishes_of(kind: str, seed: int) -> list[Wish]:
    """The prompt of every image of a kind: ``pool`` and ``surplus`` to choose from, ``curve`` of prompts nobody saw."""
    pool, new = prompt_split(seed)
    if kind != "curve":
        each = IMAGES_PER_PROMPT * (SURPLUS if kind == "surplus" else 1)
        return [wish for wish in pool for _ in range(each)]
    return [wish for wish in new[:JUDGED_PROMPTS] for _ in range(MOST_N)]
