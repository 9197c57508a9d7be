"""An HTTP answer of a server that is not trusted."""

from __future__ import annotations

import http.client
import io
import socket
import time
from contextlib import suppress
from typing import Any


class CheckedResponse(http.client.HTTPResponse):
    """An answer that ends: it must be complete within the timeout of its socket, counted from the request, however
    often something of it arrives. Its pieces have a size of at least 0. Of a piece of -1 bytes, the class above would
    read everything that a server sends, however much that is.
    """

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        if sock.gettimeout() is not None:
            self.fp = io.BufferedReader(_Ending(self.fp.detach(), sock))

    def _safe_read(self, amt: int) -> Any:
        if amt < 0:
            raise http.client.IncompleteRead(b"")
        return super()._safe_read(amt)  # type: ignore[misc]


class _Ending(io.RawIOBase):
    """The bytes that a socket receives within its timeout.

    Args:
        stream: the unbuffered stream of the socket.
    """

    def __init__(self, stream: io.RawIOBase, sock: socket.socket) -> None:
        self._stream, self._socket, self._seconds = stream, sock, sock.gettimeout() or 0.0
        self._end = time.monotonic() + self._seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer is not complete in time")
        self._socket.settimeout(left)
        read: int | None = self._stream.readinto(buffer)
        return read

    def close(self) -> None:
        with suppress(OSError):
            # the connection may serve further requests, unless it is closed
            self._socket.settimeout(self._seconds)
        self._stream.close()
        super().close()
