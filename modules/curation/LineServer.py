"""Questions and answers over two streams of lines: one JSON object per line, one reply to each request."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import IO, Any

from modules.util.errors import UserError
from modules.util.jsonio import parse_json

PROTOCOL = 1
MAX_LINE = 1 << 20
Message = dict[str, Any]


class LineServer:
    """Answers requests one by one until ``quit`` or the end of the input.

    Every request line gets exactly one reply line, once its effect is on disk.

    Args:
        requests: lines of UTF-8 bytes.
        replies: lines of text; flushed after each.
        verbs: the function of each request, by its ``do``.
    """

    def __init__(
        self, requests: IO[bytes], replies: IO[str], verbs: dict[str, Callable[[Message], Message]]
    ) -> None:
        self._requests = requests
        self._replies = replies
        self._verbs = verbs

    def hello(self) -> Message:
        """The first line, without its type."""
        raise NotImplementedError

    def where(self, **more: Any) -> Message:
        """The open question, or a message that there is none."""
        raise NotImplementedError

    def bye(self) -> Message:
        """The last line, without its type."""
        raise NotImplementedError

    def serve(self) -> None:
        """Say hello, then answer line by line."""
        self._say({"type": "hello", "protocol": PROTOCOL, **self.hello()})
        self._say(self.where())
        while line := self._requests.readline(MAX_LINE + 1):
            if not line.strip():
                continue
            if len(line) > MAX_LINE:
                while line and not line.endswith(b"\n"):
                    line = self._requests.readline(MAX_LINE)
                self._say({"type": "error", "message": f"a line is longer than {MAX_LINE} bytes"})
                continue
            reply = self.reply(line)
            if reply is None:
                break
            self._say(reply)
        self._say({"type": "bye", **self.bye()})

    def reply(self, line: bytes) -> Message | None:
        """Handle one request and return the reply; ``None`` to ``quit``."""
        try:
            request = self._read(line)
            return None if request["do"] == "quit" else self._verbs[request["do"]](request)
        except UserError as error:
            return {"type": "error", "message": error.message, "hint": error.hint}

    def _read(self, line: bytes) -> Message:
        request = parse_json(line, "request")
        if not isinstance(request, dict) or not isinstance(request.get("do"), str):
            raise UserError('a request is an object with "do"', hint='for example {"do": "state"}')
        if request["do"] not in (*self._verbs, "quit"):
            raise UserError(
                f"there is no request {request['do']!r}", hint=f"known: {', '.join([*self._verbs, 'quit'])}"
            )
        return request

    def _say(self, message: Message) -> None:
        # ASCII with escapes works for any encoding at the other end, and for names that are not UTF-8.
        self._replies.write(json.dumps(message, allow_nan=False) + "\n")
        self._replies.flush()
