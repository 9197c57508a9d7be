"""SELECT: all images of a prompt at once; the person picks the best and the worst."""

from __future__ import annotations

import random

from modules.curation.choosing.base import WAYS, AnswerKind, Board, Key, Layout, WayOfChoosing
from modules.curation.standing import Situation


class Select(WayOfChoosing):
    order = 4
    title = "Select"
    text = "All at once: click the best, right-click the worst."
    kind = AnswerKind.CHOOSE
    layout = Layout.GRID

    def keys(self, images: int) -> tuple[Key[Board], ...]:
        return (
            Key("Best", ("Return", "KP_Enter"), lambda board: board.mark_best(), True, True),
            Key("Worst", ("w",), lambda board: board.mark_worst(), judges=True),
            Key("Next prompt", ("space", "n"), lambda board: board.next_prompt()),
        )

    def hint(self, situation: Situation, images: int) -> str:
        return "Click the best, right-click the worst"

    def question(self, situation: Situation, rng: random.Random) -> tuple[int, ...]:
        return situation.alive


WAYS.register("SELECT")(Select())
