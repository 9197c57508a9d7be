"""Voting over two streams of lines, as in picking (``LineServer``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from modules.arena.Arena import Arena, Ballot
from modules.curation.LineServer import LineServer, Message
from modules.util.errors import UserError


class ArenaServer(LineServer):
    """Answers requests one by one. Names are included once the last question is answered, and in the last
    line.

    Args:
        arena: with the store open.
        requests: lines of UTF-8 bytes.
        replies: lines of text; flushed after each.
    """

    def __init__(self, arena: Arena, requests: IO[bytes], replies: IO[str]) -> None:
        self._arena = arena
        verbs: dict[str, Callable[[Message], Message]] = {
            "state": lambda request: self.where(),
            "answer": self._answer,
            "tie": lambda request: self._vote(None),
            "both_bad": lambda request: self._vote(None),
            "skip": lambda request: self._vote(None, skipped=True),
            "undo": lambda request: self._undo(),
        }
        super().__init__(requests, replies, verbs)

    def hello(self) -> Message:
        return {"mode": "COMPARE", "answers": self._arena.tally.votes}

    def bye(self) -> Message:
        return {"answers": self._arena.tally.votes, "result": self._arena.tally.to_dict()}

    def where(self, **more: Any) -> Message:
        arena = self._arena
        common = {"answers": arena.tally.votes, "left": arena.left, **more}
        if arena.ballot is None:
            ending = arena.ending
            if ending is None:
                raise UserError("the next question cannot be shown", hint="start again: no vote is lost")
            return {
                "type": "finished",
                "because": ending.value,
                **common,
                "result": arena.tally.to_dict(),
            }
        return {
            "type": "question",
            "prompt": arena.ballot.prompt,
            "images": len(arena.ballot.show),
            "show": [_image(path) for path in arena.ballot.show],
            **({"sources": [str(path) for path in arena.ballot.sources]} if arena.ballot.sources else {}),
            **common,
        }

    def _vote(self, side: int | None, skipped: bool = False) -> Message:
        self._arena.answer(side, skipped)
        return self.where()

    def _answer(self, request: Message) -> Message:
        ballot = self._arena.ballot
        if ballot is None:
            raise UserError("there is no open question", hint="undo takes the last vote back")
        return self._vote(_side(request.get("best"), ballot))

    def _undo(self) -> Message:
        self._arena.undo()
        return self.where()


def _image(path: Path) -> Message:
    return {"file": path.name, "path": str(path)}


def _side(best: object, ballot: Ballot) -> int:
    names = [path.name for path in ballot.show]
    if isinstance(best, int) and not isinstance(best, bool) and best in (0, 1):
        return best
    if isinstance(best, str) and best in names:
        return names.index(best)
    raise UserError(
        f"'best': {best!r} is not shown", hint="name a file of the question, or its position counted from 0"
    )
