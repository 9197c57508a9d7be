"""Figures of the judge about images, and the picture of before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from modules.util.jsonio import atomic_path
from modules.util.rng import digest64
from scripts.demo.judge import fidelity, read_image
from scripts.demo.taste import Taste
from scripts.demo.world import Pixels, Wish

SHEET_COLUMNS = 8
SAME = 1e-6


def questions(new: Sequence[Wish], count: int, seed: int) -> tuple[list[Wish], list[int]]:
    """(wishes, seeds) of the images that are judged: the new prompts in turn, each time with a different seed."""
    wishes = [new[i % len(new)] for i in range(count)]
    return wishes, [digest64("demo-judged", seed, i) % 2**32 for i in range(count)]


@dataclass(frozen=True)
class Judged:
    """Figures of the judge about one set of images.

    Args:
        scores: how much each is liked.
        fidelity: share that shows what the prompt says.
        attribute: mean of what the taste is about.
    """

    scores: list[float]
    fidelity: float
    attribute: float

    @property
    def reward(self) -> float:
        """Mean of the scores."""
        return float(np.mean(self.scores))


def judge(pixels: Sequence[Pixels], wishes: Sequence[Wish], taste: Taste) -> Judged:
    readings = [read_image(image) for image in pixels]
    scores = [taste.score(reading, wish) for reading, wish in zip(readings, wishes, strict=True)]
    attribute = float(np.mean([taste.value(reading) for reading in readings]))
    return Judged(scores, fidelity(readings, wishes)["all"], attribute)


def win_rate(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Share of prompts and seeds for which ours is liked more; ties count half."""
    wins = [
        1.0 if a > b + SAME else 0.5 if abs(a - b) <= SAME else 0.0 for a, b in zip(ours, theirs, strict=True)
    ]
    return float(np.mean(wins))


def contact_sheet(path: Path, before: Sequence[Pixels], after: Sequence[Pixels], taste: Taste) -> None:
    """Write rows of images before training, each above the image of the same prompt and seed after training."""
    rows, scale, pad, label = 3, 2, 4, 22
    count = min(len(before), rows * SHEET_COLUMNS)
    cell = before[0].shape[0] * scale
    width = SHEET_COLUMNS * (cell + pad) + pad
    lines = -(-count // SHEET_COLUMNS)
    block = 2 * (cell + label) + 2 * pad
    sheet = Image.new("RGB", (width, lines * block + pad), (250, 250, 250))
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for line in range(lines):
        for half, (title, images) in enumerate(
            (("before", before), (f"after training on a taste for {taste.likes}", after))
        ):
            top = line * block + half * (cell + label) + pad
            draw.text((pad, top), title, fill=(40, 40, 40), font=font)
            for column in range(min(SHEET_COLUMNS, count - line * SHEET_COLUMNS)):
                image = Image.fromarray(images[line * SHEET_COLUMNS + column]).resize(
                    (cell, cell), Image.Resampling.NEAREST
                )
                sheet.paste(image, (pad + column * (cell + pad), top + label - 4))
    with atomic_path(path) as temporary:
        sheet.save(temporary, format="PNG")
