"""Requests to the far side. Its answers are untrusted: sizes are limited and types checked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from modules.remote.Connection import Ask, Command, Connection, Lost, connected
from modules.remote.helper_file import helper_file
from modules.remote.there.limits import MARK, MAX_GREETING, MAX_MESSAGE, MAX_PIECE
from modules.util.config.remote.RemoteConfig import RemoteConfig
from modules.util.errors import UserError
from modules.util.jsonio import parse_json
from modules.util.owned_files import shown

PYTHONS = ("python3.11", "python3.12", "python3.13", "python3", "python")
MINIMUM = (3, 11)
PLACE = ".tastemaker-far-side"
_VERSION = "import sys; print('python %d %d' % sys.version_info[:2])"
T = TypeVar("T")
Note = Callable[[dict[str, Any], bytes], Awaitable[None]]
Another = Callable[[], AbstractAsyncContextManager[Command]]


@asynccontextmanager
async def far_side(remote: RemoteConfig, ask: Ask) -> AsyncIterator[Far]:
    """Start the far side of a computer over a new connection.

    Raises:
        UserError: the computer cannot be used. Unreachable, Lost: a retry may succeed.
    """
    async with connected(remote, ask) as connection:
        python = await _python(connection)
        name, data = helper_file()
        root, path = await connection.put(f"{PLACE}/{name}", data)
        line = [python, "-I", path, root]
        async with connection.command(line) as command:
            far = Far(remote, command, lambda: connection.command(line))
            await far.greet()
            yield far


async def _python(connection: Connection) -> str:
    """Find a recent enough Python there.

    Raises:
        UserError: there is none.
    """
    remote, found = connection.remote, []
    for name in (remote.python,) if remote.python else PYTHONS:
        status, output = await connection.capture([name.removeprefix("~/"), "-c", _VERSION])
        words = output.decode("ascii", "replace").split()[-3:]
        if status == 0 and words[:1] == ["python"] and all(word.isdecimal() for word in words[1:]):
            version = tuple(int(word) for word in words[1:])
            if version >= MINIMUM:
                return name.removeprefix("~/")
            found.append(".".join(words[1:]))
    wanted = ".".join(map(str, MINIMUM))
    what = f"only Python {shown(', '.join(found))}" if found else f"no {shown(remote.python) or 'Python'}"
    raise UserError(
        f"{remote.address()} has {what}; Python {wanted} or newer is needed",
        "remote.python",
        f"install it there (Debian, Ubuntu: apt install python{wanted} python{wanted}-venv), or set remote.python",
    )


class Far:
    """A client of the far side, with one request at a time.

    Args:
        remote: the computer, for messages.
        command: its process there.
        another: starts a second such process over the same connection.
    """

    def __init__(self, remote: RemoteConfig, command: Command, another: Another) -> None:
        self.remote, self._command, self._rest = remote, command, bytearray()
        self._another = another

    @asynccontextmanager
    async def second(self) -> AsyncIterator[Far]:
        """Start another far side over the same connection, for requests that must not wait for this one.

        Raises:
            UserError: it does not start. Lost: the connection ended.
        """
        async with self._another() as command:
            far = Far(self.remote, command, self._another)
            await far.greet()
            yield far

    async def greet(self) -> None:
        """Skip the output of the login shell.

        Raises:
            UserError: the far side does not start.
        """
        read = 0
        while (line := await self._line(MAX_GREETING)) != MARK:
            read += len(line) + 1
            if read > MAX_GREETING:
                raise UserError(f"{self.remote.address()} prints too much when a command is run")

    async def _line(self, limit: int) -> bytes:
        seen = 0
        while (end := self._rest.find(b"\n", seen)) < 0:
            seen = len(self._rest)
            if seen > limit:
                raise UserError(f"{self.remote.address()} sent a line of more than {limit} bytes")
            await self._more()
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line

    async def _more(self) -> None:
        self._rest += await self._command.read()

    async def _message(self) -> tuple[dict[str, Any], bytes]:
        data = parse_json(await self._line(MAX_MESSAGE), f"answer of {self.remote.address()}")
        size = data.get("bytes", 0) if isinstance(data, dict) else -1
        if type(size) is not int or not 0 <= size <= MAX_PIECE:
            raise self._strange()
        while len(self._rest) < size:
            await self._more()
        more = bytes(self._rest[:size])
        del self._rest[:size]
        return data, more

    def _strange(self) -> UserError:
        return UserError(
            f"{self.remote.address()} sent an unexpected answer",
            hint="start again; if this happens again, do not trust that computer",
        )

    async def send(self, data: bytes) -> None:
        """Send bytes that belong to a request."""
        try:
            await self._command.write(data)
        except Lost:
            await self._last_words()
            raise

    async def _last_words(self) -> None:
        """Raise the last error reported by the far side, if any, before it ended."""
        with suppress(Lost):
            while True:
                message, _ = await self._message()
                if "error" in message:
                    raise self._refused(message)

    async def ask(
        self, kind: type[T], verb: str, *, note: Note | None = None, data: bytes = b"", **fields: Any
    ) -> T:
        """Send a request and wait for the answer.

        Args:
            kind: expected type of the answer; anything else is refused.
            note: called with messages that precede the answer.
            data: bytes sent after the request.

        Raises:
            UserError: the request is refused, or the answer has another type. Lost: the connection ended.
        """
        await self.send(json.dumps({"do": verb, **fields}).encode("ascii") + b"\n" + data)
        while True:
            message, more = await self._message()
            if "error" in message:
                raise self._refused(message)
            if "ok" in message:
                try:
                    return TypeAdapter(kind).validate_python(message["ok"], strict=True)
                except ValidationError:
                    raise self._strange() from None
            if note is None:
                raise self._strange()
            await note(message, more)

    def _refused(self, message: Mapping[str, Any]) -> UserError:
        hint = message.get("hint")
        return UserError(
            f"{self.remote.address()}: {shown(str(message['error']), 2000)}",
            hint=shown(hint, 2000) if isinstance(hint, str) else None,
        )
