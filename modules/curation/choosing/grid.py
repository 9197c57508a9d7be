"""GRID: likes and dislikes on the images of many prompts. Images seen without a mark lose to liked ones."""

from __future__ import annotations

import random

from modules.curation.choosing.base import WAYS, AnswerKind, Board, Key, Layout, Settled, WayOfChoosing
from modules.curation.standing import Distance, Situation, likes_to_pairs


class Grid(WayOfChoosing):
    order = 6
    title = "Grid"
    text = (
        "Many prompts on one page: like or dislike what stands out. Likes beat the other images you have "
        "seen."
    )
    kind = AnswerKind.MARK
    layout = Layout.SHEET
    needs_fit = False

    def keys(self, images: int) -> tuple[Key[Board], ...]:
        return (
            Key("Like", ("space", "l"), lambda board: board.like(), True, queues=True),
            Key("Dislike", ("d", "Delete"), lambda board: board.dislike(), queues=True),
            Key("Next prompts", ("Return", "n", "KP_Enter"), lambda board: board.next_prompt(), judges=True),
        )

    def hint(self, situation: Situation, images: int) -> str:
        return "Click what you like, right-click what you dislike"

    def question(self, situation: Situation, rng: random.Random) -> tuple[int, ...]:
        return () if situation.closed else situation.alive

    def settle(self, situation: Situation, threshold: float, distance: Distance) -> Settled | None:
        """Once the person has finished the prompt, pair every liked image with a worse one, if any."""
        if not situation.closed:
            return None
        return Settled(likes_to_pairs(situation.good, situation.bad, situation.neither, distance))


WAYS.register("GRID")(Grid())
