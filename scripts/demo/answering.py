"""A simulated person at the two streams of lines that picking and comparing speak."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import IO, Any, cast

from scripts.demo.judge import read_image
from scripts.demo.pairs import load_pixels
from scripts.demo.taste import Person
from scripts.demo.world import Wish

CLICKS = 4
"""Answers about the images of one prompt, after which the best one so far is picked."""
Message = dict[str, Any]


class Answering(io.StringIO):
    """Reads replies and answers each with the next request; give it as both streams.

    Where all answers about a prompt were ties there is no best image to pick, so the prompt is left without a pair.

    Args:
        person: who answers.
        budget: how many answers the person gives before quitting.
        clicks: the same for each prompt of picking; ``None`` for as many as are asked.
        name: name of the session; the same question always gets the same answer in a session.
    """

    def __init__(self, person: Person, budget: int, clicks: int | None, name: str) -> None:
        super().__init__()
        self.last: Message = {}
        self.given = 0
        self._person, self._budget, self._clicks, self._name = person, budget, clicks, name
        self._waiting: list[bytes] = []
        self._request = ""

    def as_streams(self) -> tuple[IO[bytes], IO[str]]:
        """(requests, replies) for a server."""
        return cast("IO[bytes]", _Requests(self._waiting)), self

    def write(self, text: str) -> int:
        self.last = json.loads(text)
        request = self._answer(self.last)
        if request is not None:
            self._request = request["do"]
            self._waiting.append(json.dumps(request).encode() + b"\n")
        return len(text)

    def _answer(self, reply: Message) -> Message | None:
        if reply["type"] == "continue":
            return {"do": "finish_group"}
        if reply["type"] == "error":
            if self._request != "pick":
                raise RuntimeError(f"{self._request!r} was refused: {reply['message']}")
            return {"do": "finish_group"}
        if reply["type"] != "question":
            return None
        if self._clicks is not None and reply["answers"] >= self._clicks:
            return {"do": "pick"}
        if self.given >= self._budget:
            return {"do": "quit"}
        self.given += 1
        wish = Wish.parse(reply["prompt"])
        paths = [Path(one["path"]) for one in reply["show"]]
        first, second = (self._person.taste.score(read_image(load_pixels(path)), wish) for path in paths)
        preferred = self._person.prefer(first, second, self._name, self.given)
        return {"do": "tie"} if preferred is None else {"do": "answer", "best": preferred}


class _Requests:
    def __init__(self, waiting: list[bytes]) -> None:
        self._waiting = waiting

    def readline(self, limit: int = -1) -> bytes:
        return self._waiting.pop(0) if self._waiting else b""
