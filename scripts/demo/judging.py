"""Figures of the judge about images, and the picture of before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from modules.util.jsonio import atomic_path
from modules.util.rng import digest64
from scripts.demo.best_of_n import best_of_n
from scripts.demo.judge import fidelity, read_image
from scripts.demo.plan import Journey
from scripts.demo.sampling import Report, load_model, sample_pixels
from scripts.demo.taste import Taste, get_taste
from scripts.demo.world import Pixels, Wish

SHEET_COLUMNS = 8
SAME = 1e-6


def questions(new: Sequence[Wish], count: int, seed: int) -> tuple[list[Wish], list[int]]:
    """(wishes, seeds) of the images that are judged: the new prompts in turn, each time with a different seed."""
    wishes = [new[i % len(new)] for i in range(count)]
    return wishes, [digest64("demo-judged", seed, i) % 2**32 for i in range(count)]


@dataclass(frozen=True)
class Judged:
    """A set of images, with the judge's verdict.

    Args:
        liking: what the taste is about, of each image.
        scores: how much each is liked; lower for images that do not show their prompt.
        fidelity: share that shows what the prompt says.
    """

    pixels: list[Pixels]
    liking: list[float]
    scores: list[float]
    fidelity: float

    @property
    def reward(self) -> float:
        """Mean of the scores."""
        return float(np.mean(self.scores))

    @property
    def attribute(self) -> float:
        """Mean of what the taste is about."""
        return float(np.mean(self.liking))


def judge(pixels: list[Pixels], wishes: Sequence[Wish], taste: Taste) -> Judged:
    readings = [read_image(image) for image in pixels]
    scores = [taste.score(reading, wish) for reading, wish in zip(readings, wishes, strict=True)]
    return Judged(
        pixels, [taste.value(reading) for reading in readings], scores, fidelity(readings, wishes)["all"]
    )


def judge_model(
    journey: Journey,
    adapter: Path | None,
    wishes: Sequence[Wish],
    seeds: Sequence[int],
    report: Report,
    what: str,
) -> Judged:
    """Make an image for each wish and seed with the journey's model and an adapter, if any, and judge them."""
    model = load_model(journey.model, adapter)
    pixels = sample_pixels(model, [wish.caption() for wish in wishes], seeds, report, f"judging {what}")
    return judge(pixels, wishes, get_taste(journey.taste))


class Judge:
    """Judges adapters on prompts that nobody was asked about, with the same prompts and seeds for all.

    Args:
        wishes, seeds: of the base model's images: all prompts with the first seed, then all with the next.
        prompts: number of different prompts.
        each: images of each prompt that an adapter makes; they have the first seeds.
    """

    def __init__(
        self,
        journey: Journey,
        wishes: Sequence[Wish],
        seeds: Sequence[int],
        prompts: int,
        each: int,
        report: Report,
    ) -> None:
        self._journey, self._report = journey, report
        every = judge_model(journey, None, wishes, seeds, report, "the base model")
        self._curve = [every.liking[place::prompts] for place in range(prompts)]
        self._wishes, self._seeds = wishes[: each * prompts], seeds[: each * prompts]
        self.base = judge(every.pixels[: each * prompts], self._wishes, get_taste(journey.taste))

    def adapter(self, file: Path, name: str) -> Judged:
        """Judge an adapter's images."""
        return judge_model(self._journey, file, self._wishes, self._seeds, self._report, name)

    def best_of_n(self, judged: Judged) -> float:
        """Number of images of the base model whose best one equals these. The highest means that or more."""
        return best_of_n(self._curve, judged.attribute, len(self._curve[0]))


def win_rate(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Share of prompts and seeds for which ours is liked more; ties count half."""
    wins = [
        1.0 if a > b + SAME else 0.5 if abs(a - b) <= SAME else 0.0 for a, b in zip(ours, theirs, strict=True)
    ]
    return float(np.mean(wins))


def compared(before: Judged, after: Judged) -> dict[str, float]:
    """Figures of the base model's images and of an adapter's, of the same prompts and seeds, for a report."""
    return {
        "win_rate": win_rate(after.scores, before.scores),
        "reward_before": before.reward,
        "reward_after": after.reward,
        "fidelity_base": before.fidelity,
        "fidelity_adapter": after.fidelity,
        "attribute_base": before.attribute,
        "attribute_adapter": after.attribute,
    }


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
