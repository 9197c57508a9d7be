"""SMART: the two images whose comparison says most about which is best and which is worst.

The next pair has the largest expected improvement (Mockus 1975; Jones et al. 1998) over the leader at either
end of the ranking.
"""

from __future__ import annotations

import random

from modules.curation.choosing.base import WAYS, Comparing
from modules.curation.standing import Situation


class Smart(Comparing):
    order = 1
    title = "Smart"
    text = "Two at a time, only the questions that matter. Saves the pair as soon as it is certain."
    stops_when_certain = True

    def next_images(self, situation: Situation, images: list[int], rng: random.Random) -> list[int]:
        return decisive_pair(situation, images, rng)


def decisive_pair(situation: Situation, images: list[int], rng: random.Random) -> list[int]:
    """Two unseen images; later the pair across the boundary of the kept (or the dropped) images with the
    largest expected gain.

    Pairing unseen images first takes half a question per image and helps at both ends: the winner may be the
    best, the loser the worst (3N/2 - 2 questions would suffice if answers were never wrong; Pohl 1972). If
    one pair is wanted, later questions compare leader and challenger for best, and likewise for worst.
    """
    standing, answers = situation.standing, situation.answers
    unseen = [i for i in images if not standing.shown[i]]
    if len(unseen) > 1:
        return rng.sample(unseen, 2)
    keep = max(1, min(situation.wanted, len(images) // 2))
    skipped = set(answers[-1].places) if answers and answers[-1].skipped and len(images) > 2 else set()
    candidates = []
    for sign in (1.0, -1.0):
        order = sorted(images, key=lambda i: (-sign * standing.posterior.mean[i], rng.random()))
        for inside in order[:keep]:
            for outside in order[keep:]:
                if skipped != {inside, outside}:
                    gain = standing.posterior.expected_gain(sign, inside, outside)
                    candidates.append((gain, rng.random(), inside, outside))
    _, _, inside, outside = max(candidates)
    return [inside, outside]


WAYS.register("SMART")(Smart())
