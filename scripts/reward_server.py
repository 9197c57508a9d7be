"""Serve a reward over HTTP. The reward model can then run on another machine, or in a separate environment.

    python scripts/reward_server.py --reward pickscore --params '{"source": "models/PickScore_v1"}'

By default only this computer can connect. If TASTEMAKER_REWARD_TOKEN is set, every request must carry this token.
Other computers can connect only with a token. Needs requirements-server.txt.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import hmac
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from pydantic import BaseModel, ConfigDict, Field, ValidationError  # noqa: E402

from modules.reward.base import (  # noqa: E402
    Reward,
    RewardBatch,
    RewardError,
    RewardUnavailable,
    create_reward,
    to_uint8,
)
from modules.reward.remote import TOKEN_VARIABLE, is_loopback  # noqa: E402
from modules.reward.wire import VERSION, decode_image, is_length  # noqa: E402
from modules.trainer.distributed import choose_only_device  # noqa: E402
from modules.util.display import command_parser, counted, print_any_text  # noqa: E402
from modules.util.errors import ConfigError, UnsupportedError, UserError, system_refusal  # noqa: E402
from modules.util.jsonio import parse_json  # noqa: E402

try:
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.concurrency import run_in_threadpool
    from fastapi.responses import JSONResponse
    from starlette.requests import ClientDisconnect
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise SystemExit(f"{error}\nthe server needs: pip install -r requirements-server.txt") from error

log = logging.getLogger("reward_server")

MAX_PROMPT = 10_000
MOST_SOURCES = 9
"""Source images of one image."""
MOST_VALUES = 1_000_000
"""Values and commas in the JSON of a request. Once parsed, a small value needs up to 40 times its size in memory."""
WAITING = 8
"""Complete requests held at once; further ones are told to try again later (503)."""
CONNECTIONS = 64
"""Connections held at once; the oldest one without a complete request is closed for a new one."""
HEAD_SECONDS = 5.0
"""Time limit in seconds for a connection to begin its encryption, and then to send the head of a request."""

END_SECONDS = 3.0
"""Time in seconds that the requests which are still arriving have once the server was told to end."""


@dataclass(frozen=True)
class Limits:
    """Limits of one request."""

    body_bytes: int = 64 * 1024 * 1024
    images: int = 64
    image_pixels: int = 4096 * 4096
    total_pixels: int = 32 * 1024 * 1024
    body_seconds: float = 60.0
    incomplete_bytes: int = 128 * 1024 * 1024


class RewardRequest(BaseModel):
    """The body of ``POST /reward``."""

    model_config = ConfigDict(strict=True, extra="forbid")

    version: Literal[1]
    kind: str
    prompts: list[Annotated[str, Field(max_length=MAX_PROMPT)]]
    images: list[str]
    metadata: list[dict[str, Any]] = []
    group_ids: list[Annotated[int, Field(ge=-(2**63), lt=2**63)]]
    sources: list[Annotated[list[str], Field(max_length=MOST_SOURCES)]] = []


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class PatientProtocol(H11Protocol):
    """HTTP for one connection with time limits, so that idle and slow clients do not block others.

    A connection that has not sent the head of a request after ``HEAD_SECONDS`` is closed. Where
    ``CONNECTIONS`` are open, the one that has been incomplete for longest is closed for each new one.
    """

    _deadline: asyncio.TimerHandle | None = None
    since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        waiting = [one for one in self.connections if isinstance(one, PatientProtocol) and one.is_incomplete]
        if len(self.connections) >= CONNECTIONS and waiting:
            min(waiting, key=lambda one: one.since).transport.abort()
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._request_in_progress:
            self._cancel_deadline()
        elif self._deadline is None:
            self._expect_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self._deadline is None and not self._request_in_progress:
            self._expect_head()

    @property
    def is_incomplete(self) -> bool:
        """True if the request, including its body, has not arrived completely."""
        return not self._request_in_progress or bool(self.cycle.more_body)

    @property
    def _request_in_progress(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        self.since = self.loop.time()
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _head_is_late(self) -> None:
        self._deadline = None
        if not self._request_in_progress:
            self.transport.abort()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class AnnouncingServer(uvicorn.Server):
    """Prints its address once it listens. A connection that does not begin its encryption is closed soon, because
    ``PatientProtocol`` sees only those that did.

    When it is told to end, it answers complete requests, and closes the connections of others after ``END_SECONDS``.
    """

    def __init__(self, config: uvicorn.Config, announcement: str) -> None:
        super().__init__(config)
        self._announcement = announcement

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is not None:
            loop = asyncio.get_running_loop()
            patient = functools.partial(loop.create_server, ssl_handshake_timeout=HEAD_SECONDS)
            loop.create_server = patient  # type: ignore[method-assign]
        await super().startup(sockets)
        if self.started:
            print(self._announcement, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(END_SECONDS, self._close_incomplete)
        await super().shutdown(sockets)

    def _close_incomplete(self) -> None:
        for one in list(self.server_state.connections):
            if isinstance(one, PatientProtocol) and one.is_incomplete:
                one.transport.abort()


@dataclass
class Load:
    """Current load of the server: complete requests, and bytes of incomplete ones."""

    requests: int = 0
    incomplete_bytes: int = 0


def create_app(reward: Reward, limits: Limits, token: str | None) -> FastAPI:
    """The server for a loaded reward.

    Args:
        token: token that requests must carry; ``None`` accepts every request that reaches the port.
    """
    app = FastAPI(title="reward server", docs_url=None, redoc_url=None, openapi_url=None)
    one_at_a_time = asyncio.Lock()
    load = Load()

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return JSONResponse({"detail": error.detail}, error.status, headers={"Connection": "close"})

    @app.get("/health")
    async def health(request: Request) -> dict[str, Any]:
        check_token(request, token)
        return {
            "status": "ok",
            "version": VERSION,
            "name": reward.name,
            "kind": reward.kind,
            "required_fields": list(reward.required_fields),
            "max_images": limits.images,
            "max_body_bytes": limits.body_bytes,
        }

    @app.post("/reward")
    async def score(request: Request) -> dict[str, Any]:
        check_token(request, token)
        try:
            body = await asyncio.wait_for(read_body(request, limits, load), limits.body_seconds)
        except TimeoutError as error:
            raise Refused(408, f"the request was not complete after {limits.body_seconds:g} s") from error
        except ClientDisconnect as error:
            raise Refused(400, "the connection was closed before the request was complete") from error
        if load.requests >= WAITING:
            raise Refused(503, f"{WAITING} requests are already waiting: try again later")
        load.requests += 1
        try:
            async with one_at_a_time:
                return await run_in_threadpool(answer, reward, body, limits)
        finally:
            load.requests -= 1

    return app


def check_token(request: Request, token: str | None) -> None:
    if token is None:
        return
    given = request.headers.get("authorization", "").encode()
    if not hmac.compare_digest(given, f"Bearer {token}".encode()):
        raise Refused(401, "the token is missing or wrong")


async def read_body(request: Request, limits: Limits, load: Load) -> bytes:
    """Read the body up to the allowed size. A web page cannot send this content type without permission."""
    most = limits.body_bytes
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise Refused(415, "the body must be application/json")
    length = request.headers.get("content-length", "0")
    if not is_length(length, most):
        raise Refused(413, f"the body is larger than {most} bytes")
    data = bytearray()
    try:
        async for chunk in request.stream():
            data += chunk
            load.incomplete_bytes += len(chunk)
            if len(data) > most:
                raise Refused(413, f"the body is larger than {most} bytes")
            if load.incomplete_bytes > limits.incomplete_bytes + most:
                raise Refused(503, "too many large requests at once: try again later")
    finally:
        load.incomplete_bytes -= len(data)
    return bytes(data)


def answer(reward: Reward, body: bytes, limits: Limits) -> dict[str, Any]:
    """Score the images of one request; errors in the request become ``Refused``."""
    try:
        batch = read_batch(body, reward, limits)
        return {"rewards": reward.score(batch).tolist(), "extra": {}}
    except RewardUnavailable as error:
        raise Refused(503, error.message) from error
    except (RewardError, ConfigError) as error:
        raise Refused(422, error.message) from error
    except UnsupportedError as error:
        raise Refused(501, error.message) from error
    except UserError as error:
        raise Refused(400, error.message) from error


def read_batch(body: bytes, reward: Reward, limits: Limits) -> RewardBatch:
    """Parse the batch of a request; ``RewardError`` or ``UserError`` if the body is invalid."""
    if sum(map(body.count, (b"{", b"[", b","))) > MOST_VALUES:
        raise RewardError(f"the request has more than {MOST_VALUES:,} values or commas")
    try:
        asked = RewardRequest.model_validate(parse_json(body, "request"))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise RewardError(f"the request is not valid: {place}: {first['msg']}") from error
    if asked.kind != reward.kind:
        raise RewardError(f"this is a {reward.kind} reward, not {asked.kind}")
    if not 1 <= len(asked.images) <= limits.images:
        raise RewardError(f"{len(asked.images)} images are not between 1 and {limits.images}")
    if asked.sources and len(asked.sources) != len(asked.images):
        raise RewardError(f"{counted(len(asked.images), 'image')} but source images for {len(asked.sources)}")
    images: list[torch.Tensor] = []
    pixels = 0
    for text in asked.images:
        image_CHW = decode_image(text, min(limits.image_pixels, limits.total_pixels - pixels))
        pixels += image_CHW[0].numel()
        if images and image_CHW.shape != images[0].shape:
            raise RewardError("the images of a request must all have one size")
        images.append(image_CHW)
    sources: list[tuple[torch.Tensor, ...]] = []
    for texts in asked.sources:
        edited: list[torch.Tensor] = []
        for text in texts:
            source_CHW = decode_image(text, limits.image_pixels)
            pixels += source_CHW[0].numel()
            if pixels > limits.total_pixels:
                raise RewardError(f"images and source images have more than {limits.total_pixels} pixels")
            edited.append(to_uint8(source_CHW))
        sources.append(tuple(edited))
    return RewardBatch(
        torch.stack(images),
        asked.prompts,
        torch.tensor(asked.group_ids),
        list(asked.metadata),
        sources=sources,
    )


def arguments(argv: list[str] | None) -> argparse.Namespace:
    usual = Limits()
    parser = command_parser(__doc__)
    parser.add_argument("--reward", required=True, help="the reward's name")
    parser.add_argument("--params", default="{}", help="its parameters as JSON")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8077, help="port to listen on (8077); 0: any free port")
    parser.add_argument("--certificate", type=Path, help="certificate as a PEM file, for https")
    parser.add_argument("--key", type=Path, help="key of the certificate as a PEM file")
    parser.add_argument(
        "--max-images", type=int, default=usual.images, help="maximum number of images in a request"
    )
    parser.add_argument(
        "--max-megabytes",
        type=int,
        default=usual.body_bytes // 1024**2,
        help="maximum size of a request body",
    )
    parser.add_argument(
        "--max-pixels", type=int, default=usual.image_pixels, help="maximum number of pixels of an image"
    )
    return parser.parse_args(argv)


def checked_token(host: str) -> str | None:
    """The required token; without one, only this computer may connect."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token and not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other computers and {TOKEN_VARIABLE} is empty",
            "--host",
            f"set {TOKEN_VARIABLE} to a long random text on both sides",
        )
    if token and len(token) < 16:
        raise ConfigError(f"the token in {TOKEN_VARIABLE} is shorter than 16 characters")
    return token or None


def serve(options: argparse.Namespace) -> None:
    params = parse_json(options.params, "--params")
    if not isinstance(params, dict):
        raise ConfigError("not a JSON object", "--params")
    for name in ("max_images", "max_megabytes", "max_pixels"):
        if getattr(options, name) < 1:
            raise ConfigError(f"{getattr(options, name)} is below 1", f"--{name.replace('_', '-')}")
    if (options.certificate is None) != (options.key is None):
        raise ConfigError(
            "a certificate needs its key, and a key its certificate",
            "--certificate",
            "give both --certificate and --key, or neither",
        )
    token = checked_token(options.host)
    reward = create_reward(options.reward, params)
    hint = "give one device, and start a server with a port of its own for each of the others"
    device = choose_only_device(options.device, hint)
    limits = Limits(options.max_megabytes * 1024**2, options.max_images, options.max_pixels)
    config = uvicorn.Config(
        create_app(reward, limits, token),
        host=options.host,
        port=options.port,
        http=PatientProtocol,
        loop="asyncio",
        timeout_keep_alive=5,
        server_header=False,
        log_level="warning",
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
    )
    with bound(config) as sock:
        reward.load(device)
        with address_checked(config):  # a server that loaded at the same time may have begun to listen there
            sock.listen(config.backlog)
        address = {"url": f"{'https' if options.certificate else 'http'}://{_shown(sock.getsockname())}"}
        announcement = json.dumps({**address, "reward": reward.name, "kind": reward.kind})
        AnnouncingServer(config, announcement).run(sockets=[sock])


def bound(config: uvicorn.Config) -> socket.socket:
    """A socket at the address to listen on, once the certificate is read.

    Raises:
        ConfigError: the address cannot be used, or the certificate or its key cannot be read.
    """
    try:
        config.load()
    except OSError as error:
        raise ConfigError(
            f"{config.ssl_certfile} and {config.ssl_keyfile} cannot be used: {system_refusal(error)}",
            "--certificate",
            "name a certificate and its key as PEM files",
        ) from error
    sock = socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET)
    with ExitStack() as failed, address_checked(config):
        failed.callback(sock.close)
        if os.name != "nt":
            # the port of a server that has just ended is free
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((config.host, config.port))
        failed.pop_all()
    return sock


@contextmanager
def address_checked(config: uvicorn.Config) -> Iterator[None]:
    """Use the address to listen on.

    Raises:
        ConfigError: it cannot be used.
    """
    try:
        yield
    except (OSError, OverflowError) as error:
        said = system_refusal(error) if isinstance(error, OSError) else error
        raise ConfigError(
            f"cannot listen at {config.host}, port {config.port}: {said}", "--port", "0 takes any free port"
        ) from error


def _shown(name: tuple[Any, ...]) -> str:
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def main(argv: list[str] | None = None) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        serve(arguments(argv))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    print_any_text()
    sys.exit(main())
