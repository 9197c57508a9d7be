"""ELO: two images of similar rating at a time; the person says when to save the pair."""

from __future__ import annotations

import random
from collections.abc import Sequence

from modules.curation.choosing.base import WAYS, Comparing
from modules.curation.ranking import Comparison, Floats, Posterior, elo_ratings
from modules.curation.standing import Situation


class Elo(Comparing):
    order = 2
    title = "Elo"
    text = "Two at a time, rated as in chess. You decide when to save."
    needs_fit = False

    def ratings(self, count: int, comparisons: Sequence[Comparison], posterior: Posterior) -> Floats:
        return elo_ratings(count, comparisons)

    def next_images(self, situation: Situation, images: list[int], rng: random.Random) -> list[int]:
        """The image shown least, and the one nearest in rating that it was not compared with last."""
        standing = situation.standing
        first = min(images, key=lambda i: (standing.shown[i], rng.random()))
        met = next((set(a.places) for a in reversed(situation.answers) if first in a.places), set())
        others = [i for i in images if i != first]
        fresh = [i for i in others if i not in met] or others
        rating = standing.ratings
        second = min(fresh, key=lambda i: (abs(rating[i] - rating[first]), rng.random()))
        return [first, second]


WAYS.register("ELO")(Elo())
