"""The judge as a reward server: what docs/rewards.md asks of a server, with nothing but the standard library.

    python -m scripts.demo.judge_server --taste large

prints its address; ``{"reward": "remote", "params": {"url": "http://127.0.0.1:PORT"}}`` trains with it.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from modules.reward.base import RewardError, to_uint8
from modules.reward.remote import TOKEN_VARIABLE
from modules.reward.wire import VERSION, decode_image, is_length
from modules.util.errors import UserError
from modules.util.jsonio import parse_json
from scripts.demo.judge import read_image
from scripts.demo.taste import TASTES, Taste, get_taste
from scripts.demo.world import SIZE, Wish

MAX_BODY = 8 * 1024 * 1024
MAX_IMAGES = 64
MAX_CONNECTIONS = 32
WAITING = 8
"""Complete requests held at once; further ones are told to try again later (503)."""
REQUEST_SECONDS = 8.0
"""Time that a request may take to arrive."""


class JudgeServer(ThreadingHTTPServer):
    """Answers on a free port of this computer. Requests arrive next to each other and are scored one by one.

    Args:
        taste: what the judge likes.
        token: what requests must carry, if anything.

    Attributes:
        judged: images so far.
        turns: of complete requests.
        cpu_seconds: spent on scoring them.
    """

    request_queue_size = 128
    daemon_threads = True

    def __init__(self, taste: Taste, token: str | None = None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.taste, self.token = taste, token
        self.judged, self.cpu_seconds = 0, 0.0
        self.turns = threading.BoundedSemaphore(WAITING)
        self._one_at_a_time = threading.Lock()
        self._incomplete: dict[socket.socket, None] = {}
        self._guard = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Accept a connection; if there are too many, close the one that has been incomplete for longest."""
        with self._guard:
            oldest = next(iter(self._incomplete)) if len(self._incomplete) >= MAX_CONNECTIONS else None
            self._incomplete[request] = None
        if oldest is not None:
            self.hang_up(oldest)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have hung up."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def arrived(self, request: socket.socket) -> None:
        """Note that the whole request has arrived and may now wait for its turn."""
        with self._guard:
            self._incomplete.pop(request, None)

    def hang_up(self, request: socket.socket) -> None:
        """Close a connection whose request is late."""
        with self._guard:
            if request not in self._incomplete:
                return
            del self._incomplete[request]
        with suppress(OSError):  # already gone
            request.shutdown(socket.SHUT_RDWR)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def scores(self, body: bytes) -> list[float]:
        """Rewards for the body of a request.

        Raises:
            UserError: it is not a request, or an image or prompt is not of the demo's world.
        """
        asked: Any = parse_json(body, "request")
        if not isinstance(asked, dict) or asked.get("version") != VERSION or asked.get("kind") != "pointwise":
            raise RewardError("this is not a request for a pointwise reward")
        prompts: Any = asked.get("prompts")
        images: Any = asked.get("images")
        if not _texts(prompts) or not _texts(images) or len(prompts) != len(images):
            raise RewardError("prompts and images must be two lists of texts of one length")
        if not 1 <= len(images) <= MAX_IMAGES:
            raise RewardError(f"{len(images)} images are not between 1 and {MAX_IMAGES}")
        with self._one_at_a_time:
            begin = time.thread_time()
            try:
                made = [self._score(text, prompt) for text, prompt in zip(images, prompts, strict=True)]
                self.judged += len(made)
            finally:
                self.cpu_seconds += time.thread_time() - begin
        return made

    def _score(self, text: str, prompt: str) -> float:
        image_CHW = decode_image(text, SIZE * SIZE)
        if image_CHW.shape[1:] != (SIZE, SIZE):
            raise RewardError(f"the judge reads images of {SIZE}x{SIZE} pixels")
        pixels_HWC = to_uint8(image_CHW).permute(1, 2, 0).contiguous().numpy()
        return self.taste.score(read_image(pixels_HWC), Wish.parse(prompt))


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


class _Handler(BaseHTTPRequestHandler):
    server: JudgeServer

    def setup(self) -> None:
        super().setup()
        # a socket timeout would start again with every byte
        self._deadline = threading.Timer(REQUEST_SECONDS, self.server.hang_up, (self.connection,))
        self._deadline.daemon = True
        self._deadline.start()

    def finish(self) -> None:
        self._arrived()
        super().finish()

    def _arrived(self) -> None:
        self._deadline.cancel()
        self.server.arrived(self.connection)

    def do_GET(self) -> None:
        if not self._allowed():
            return
        if self.path != "/health":
            self._say(404, {"detail": "there is /health and /reward"})
            return
        facts = {
            "status": "ok",
            "version": VERSION,
            "name": f"judge: {self.server.taste.likes}",
            "kind": "pointwise",
        }
        self._say(
            200,
            {**facts, "required_fields": ["prompt"], "max_images": MAX_IMAGES, "max_body_bytes": MAX_BODY},
        )

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not self._allowed():
            return
        if self.path != "/reward":
            self._say(404, {"detail": "there is /health and /reward"})
        elif self.headers.get("Content-Type", "").split(";")[0].strip() != "application/json":
            self._say(415, {"detail": "the body must be application/json"})
        elif not is_length(length, MAX_BODY):
            self._say(413, {"detail": f"the body must have a length of at most {MAX_BODY} bytes"})
        else:
            body = self.rfile.read(int(length))
            self._arrived()
            self._score(body)

    def _score(self, body: bytes) -> None:
        if not self.server.turns.acquire(blocking=False):
            self._say(503, {"detail": f"{WAITING} requests are already waiting: try again later"})
            return
        answer: tuple[int, dict[str, Any]]
        try:
            answer = 200, {"rewards": self.server.scores(body), "extra": {}}
        except UserError as error:
            answer = 422, {"detail": error.message}
        finally:
            self.server.turns.release()
        self._say(*answer)

    def _allowed(self) -> bool:
        given = self.headers.get("Authorization", "").encode()
        if self.server.token is None or hmac.compare_digest(given, f"Bearer {self.server.token}".encode()):
            return True
        self._say(401, {"detail": "the token is missing or wrong"})
        return False

    def _say(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def judge_server(taste: Taste, token: str | None = None) -> Iterator[JudgeServer]:
    """Run a server in a thread of this process within a block."""
    server = JudgeServer(taste, token)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--taste", choices=sorted(TASTES), default="large")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    options = parser.parse_args(argv)
    server = JudgeServer(
        get_taste(options.taste), os.environ.get(TOKEN_VARIABLE, "").strip() or None, options.port
    )
    print(json.dumps({"url": server.url, "taste": options.taste}), flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
