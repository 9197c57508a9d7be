"""TRIAGE: one image after the other, good or bad; then pairs of similar good and bad images."""

from __future__ import annotations

import random

from modules.curation.choosing.base import WAYS, AnswerKind, Board, Key, Settled, WayOfChoosing
from modules.curation.standing import Distance, Situation, pools_to_pairs


class Triage(WayOfChoosing):
    order = 5
    title = "Triage"
    text = "One at a time, good or bad. Then similar good and bad images are paired."
    kind = AnswerKind.JUDGE

    def keys(self, images: int) -> tuple[Key[Board], ...]:
        return (
            Key("Bad", ("Left", "b", "KP_Left"), lambda board: board.judge(False), judges=True),
            Key("Good", ("Right", "g", "KP_Right"), lambda board: board.judge(True), True, True),
            Key("Neither", ("Down", "space", "KP_Down"), lambda board: board.judge(None)),
        )

    def hint(self, situation: Situation, images: int) -> str:
        good, bad = len(situation.good), len(situation.bad)
        return f"Good or bad?   {good} good, {bad} bad, {len(situation.alive) - good - bad} others"

    def question(self, situation: Situation, rng: random.Random) -> tuple[int, ...]:
        return tuple(situation.unjudged[:1])

    def settle(self, situation: Situation, threshold: float, distance: Distance) -> Settled | None:
        """Once every image is judged, pair the pools. Without both kinds, the group ends."""
        if situation.unjudged:
            return None
        return Settled(pools_to_pairs(situation.good, situation.bad, distance, situation.wanted))


WAYS.register("TRIAGE")(Triage())
