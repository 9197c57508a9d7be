"""FOUR_UP: four images at a time, of which the best and the worst are picked (Best-Worst Scaling; Louviere et
al. 2015).
"""

from __future__ import annotations

import random

from modules.curation.choosing.base import WAYS, Comparing
from modules.curation.choosing.smart import decisive_pair
from modules.curation.standing import Situation


class FourUp(Comparing):
    order = 3
    title = "Four-up"
    text = "Four at a time: choose the best and the worst. Saves the pair as soon as it is certain."
    stops_when_certain = True

    def next_images(self, situation: Situation, images: list[int], rng: random.Random) -> list[int]:
        """Four unseen images; later, leader and best challenger for best, and the same for worst."""
        if len(images) < 4:
            return decisive_pair(situation, images, rng)
        standing, answers = situation.standing, situation.answers
        unseen = [i for i in images if not standing.shown[i]]
        if len(unseen) > 3:
            return rng.sample(unseen, 4)
        skipped = set(answers[-1].places) if answers and answers[-1].skipped and len(images) > 4 else set()
        posterior = standing.posterior
        chosen: list[int] = []
        for sign in (1.0, -1.0):
            left = [i for i in images if i not in chosen]
            leader = max(left, key=lambda i: (sign * posterior.mean[i], rng.random()))
            left.remove(leader)
            left.sort(key=lambda i: (-posterior.expected_gain(sign, leader, i), rng.random()))
            again = {*chosen, leader, left[0]} == skipped
            chosen += [leader, left[1] if again else left[0]]
        return chosen


WAYS.register("FOUR_UP")(FourUp())
