"""Reports from ComfyUI over its WebSocket: steps and previews."""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

MOST_BYTES = 16 << 20
OPEN_SECONDS = 2.0
AGAIN_SECONDS = 2.0
PREVIEW, PREVIEW_WITH_FACTS = 1, 4
"""Types of binary messages: an image after its type, or an image after a length and a JSON text of that length."""


@dataclass(frozen=True)
class News:
    """One message.

    Args:
        prompt_id: id of the prompt; empty if unknown.
        step, steps: progress of the sampler, if given.
        preview: an image of the current state, as a JPEG or PNG file.
        over: whether the prompt has ended.
    """

    prompt_id: str = ""
    step: int | None = None
    steps: int | None = None
    preview: bytes = b""
    over: bool = False


class ComfySocket:
    """Listens for one client. A lost connection is reopened under the same client id.

    Whether an image is finished is read from the history, so that without a socket only the progress is
    missing.

    Args:
        url: address of the server, ``http://...``.
        client_id: id under which prompts are queued.
        headers: login headers.
    """

    def __init__(self, url: str, client_id: str, headers: Mapping[str, str]) -> None:
        self._address = f"ws{url.removeprefix('http')}/ws?clientId={quote(client_id)}"
        self._headers = dict(headers)
        self._socket: ClientConnection | None = None
        self._opened = ExitStack()
        self._next_try = 0.0

    def open(self) -> None:
        """Connect, unless there is a connection or an attempt has just failed."""
        if self._socket is not None or time.monotonic() < self._next_try:
            return
        self._next_try = time.monotonic() + AGAIN_SECONDS
        with suppress(OSError, WebSocketException):
            # no proxy, because the address is in this network, as for all other requests
            opened = connect(
                self._address, open_timeout=OPEN_SECONDS, close_timeout=0.5, max_size=MOST_BYTES, proxy=None,
                additional_headers=self._headers,
            )  # fmt: skip
            self._socket = self._opened.enter_context(opened)

    def wait(self, seconds: float) -> News | None:
        """The next relevant message, or ``None`` after this time or without a connection."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.open()
            if self._socket is None:
                time.sleep(left)
                return None
            try:
                news = read_news(self._socket.recv(timeout=left))
            except TimeoutError:
                return None
            except (OSError, WebSocketException):
                self.close()
                continue
            if news is not None:
                return news
        return None

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._socket is not None:
            with suppress(OSError, WebSocketException):
                self._opened.close()
            self._socket = None


def read_news(message: str | bytes) -> News | None:
    """The content of a message; ``None`` if it is not needed here or cannot be understood."""
    if isinstance(message, bytes):
        preview = _preview(message)
        return News(preview=preview) if preview else None
    try:
        said = json.loads(message)
    except (ValueError, RecursionError):
        return None
    data = said.get("data") if isinstance(said, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(data.get("prompt_id"), str):
        return None
    kind, prompt_id = said.get("type"), str(data["prompt_id"])
    if kind == "progress":
        return News(prompt_id, _number(data.get("value")), _number(data.get("max")))
    if kind in ("execution_success", "execution_error", "execution_interrupted"):
        return News(prompt_id, over=True)
    if kind == "executing" and data.get("node") is None:
        return News(prompt_id, over=True)
    return None


def _number(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return int(value)


def _preview(message: bytes) -> bytes:
    """The image of a binary message; empty if it has none."""
    if len(message) < 8:
        return b""
    kind, second = struct.unpack(">II", message[:8])
    if kind == PREVIEW:
        image = message[8:]
    elif kind == PREVIEW_WITH_FACTS and second <= len(message) - 8:
        image = message[8 + second :]
    else:
        return b""
    return image if image.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")) else b""
