"""The images that the rows of the benchmark ``taste`` share, and what the judge reads from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from modules.model.Model import Model
from modules.modelSetup.BaseModelSetup import BaseModelSetup
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

    def rgb(self) -> torch.Tensor:
        """The images (N, 3, H, W) in [0, 1]."""
        return torch.from_numpy(np.stack(self.pixels)).permute(0, 3, 1, 2).float() / 255

    def latents(self, setup: BaseModelSetup, model: Model) -> torch.Tensor:
        """The images as the autoencoder of a model gives them, (N, C, h, w)."""
        return torch.cat([setup.encode_image(model, part) for part in self.rgb().split(25)])

    @torch.no_grad()
    def diversity(self, setup: BaseModelSetup, model: Model) -> float:
        """Mean distance between the latents of two images of one prompt."""
        latents = self.latents(setup, model).flatten(1)
        apart = [torch.pdist(latents[group]).mean() for group in self.by_prompt().values()]
        return float(torch.stack(apart).mean())

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
