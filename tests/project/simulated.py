"""A person who answers over the line protocol: prefers what has the higher score."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts import taste

Reply = dict[str, Any]
Score = Callable[[Path, str], float]


class _Replies(io.StringIO):
    """Hands every line on and offers the answer to it as the next request."""

    def __init__(self, answer: Callable[[Reply], Reply | None]) -> None:
        super().__init__()
        self.answer = answer
        self.said: list[Reply] = []
        self.waiting: list[bytes] = []

    def write(self, text: str) -> int:
        reply = json.loads(text)
        self.said.append(reply)
        if reply["type"] != "hello" and (request := self.answer(reply)) is not None:
            self.waiting.append(json.dumps(request).encode() + b"\n")
        return len(text)


class _Requests:
    """stdin: what the person has answered."""

    def __init__(self, replies: _Replies) -> None:
        self.buffer = self
        self._replies = replies

    def readline(self, limit: int = -1) -> bytes:
        return self._replies.waiting.pop(0) if self._replies.waiting else b""


def preferring(score: Score, indifference: float = 0.0) -> Callable[[Reply], Reply | None]:
    def answer(reply: Reply) -> Reply | None:
        if reply["type"] == "continue":
            return {"do": "finish_group"}
        if reply["type"] != "question":
            return None
        scores = [score(Path(one["path"]), reply["prompt"]) for one in reply["show"]]
        if abs(scores[0] - scores[1]) <= indifference:
            return {"do": "tie"}
        return {"do": "answer", "best": int(scores[1] > scores[0])}

    return answer


def headless(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[Reply], Reply | None], *arguments: str
) -> list[Reply]:
    """What a verb said, answered by a person."""
    replies = _Replies(answer)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", _Requests(replies))
        patched.setattr(sys, "stdout", replies)
        assert taste.main([*arguments, "--headless"]) == 0
    return replies.said


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """The JSON result of a verb."""
    capsys.readouterr()
    status = taste.main([*map(str, arguments), "--json"])
    said = capsys.readouterr()
    assert status == 0, said.err
    return json.loads(said.out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one message of a verb that ends with status 2."""
    capsys.readouterr()
    assert taste.main([*map(str, arguments)]) == 2
    said = capsys.readouterr()
    assert not said.out and "Traceback" not in said.err
    return said.err
