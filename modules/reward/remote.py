"""A reward requested over HTTP: from another machine, another environment, or a judge."""

from __future__ import annotations

import http.client
import ipaddress
import logging
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, urlsplit

import torch
from torch import Tensor

from modules.reward.base import REWARDS, Kind, Reward, RewardBatch, RewardError, RewardUnavailable
from modules.reward.wire import VERSION, decode_answer, encode_request
from modules.util.errors import ConfigError, UserError
from modules.util.jsonio import parse_json
from modules.util.web.CheckedResponse import CheckedResponse
from modules.util.web.HttpClient import may_hold_login

log = logging.getLogger(__name__)

TOKEN_VARIABLE = "TASTEMAKER_REWARD_TOKEN"
MAX_ANSWER_BYTES = 16 * 1024 * 1024
FIRST_PAUSE = 0.5
TOKEN_NAME = re.compile(r"TASTEMAKER_REWARD_[A-Z0-9_]{1,64}")
"""Allowed environment variables, so that a config of somebody else cannot read other secrets."""


def is_loopback(host: str) -> bool:
    """Return whether a host name or address means this computer."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_url(url: str, allow_insecure: bool = False) -> SplitResult:
    """Parse a server's address.

    Raises:
        ConfigError: the address is invalid, contains credentials or a query, or is plain http to another
            computer.
    """
    if may_hold_login(url):
        raise ConfigError(
            "an address must not hold a password", "url", f"put a token into the variable {TOKEN_VARIABLE}"
        )
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
        # a name with an empty or an overlong part raises
        (host or "").encode("idna")
    except ValueError as error:
        raise ConfigError(f"{url!r} is not an address: {error}", "url") from error
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{url!r} is not an http or https address", "url", "write http://127.0.0.1:8077")
    if parts.query or parts.fragment:
        raise ConfigError(f"{url!r} has a query or fragment, which is not used", "url")
    if parts.scheme == "http" and not is_loopback(host) and not allow_insecure:
        raise ConfigError(
            f"{url!r} would send images and token unencrypted to another computer",
            "url",
            "use https, a tunnel to 127.0.0.1, or allow_insecure: true in a network you trust",
        )
    return parts


@REWARDS.register("remote")
class RemoteReward(Reward):
    """Scores from a reward server (``scripts/reward_server.py`` is one).

    Args:
        url: its address; ``/health`` and ``/reward`` are added.
        kind: kind of reward, which must match the server's.
        timeout: seconds for one complete request.
        retries: number of retries after a failed connection or a server error (5xx).
        batch_size: images per request; groups are kept whole if the reward compares.
        token_env: environment variable with a bearer token; its name begins with ``TASTEMAKER_REWARD_``.
            Where it is empty, no token is sent.
        allow_insecure: plain http to other computers.
    """

    needs = "a reward server"

    def __init__(
        self,
        url: str,
        kind: Kind = "pointwise",
        timeout: float = 60.0,
        retries: int = 3,
        batch_size: int = 16,
        token_env: str = TOKEN_VARIABLE,
        allow_insecure: bool = False,
    ) -> None:
        super().__init__()
        for name, value, low in (
            ("timeout", timeout, 1e-3),
            ("retries", retries, 0),
            ("batch_size", batch_size, 1),
        ):
            if value < low:
                raise ConfigError(f"{value} is below {low}", name)
        if TOKEN_NAME.fullmatch(token_env) is None:
            raise ConfigError(
                f"{token_env!r} may not be sent to a server: only variables that begin with TASTEMAKER_REWARD_ may",
                "token_env",
                f"put the token into {TOKEN_VARIABLE}",
            )
        self.parts = check_url(url, allow_insecure)
        self.url = url.rstrip("/")
        self.kind = kind
        self.timeout, self.retries, self.batch_size = timeout, retries, batch_size
        self.token_env = token_env
        self.pause: Callable[[float], None] = time.sleep
        self._limits: dict[str, int] | None = None

    def contacts(self) -> list[str]:
        """The data that are sent, the address, and the variable sent with them."""
        token = f" with the token in {self.token_env}" if os.environ.get(self.token_env, "").strip() else ""
        warning = "" if is_loopback(self.parts.hostname or "") else "warning: "
        what = "prompts and images, and for edits the source images, are sent to"
        return [f"{warning}{self.name}: {what} {self.url}{token}"]

    def load(self, device: torch.device | str = "cpu") -> None:
        """Check that the server answers and is of the expected kind.

        Raises:
            ConfigError: it does not answer, or is another kind of server.
        """
        super().load(device)
        answer = self._request("GET", "/health", b"")
        try:
            health: Any = parse_json(answer, f"answer of {self.url}/health")
        except UserError as error:
            raise ConfigError(error.message, "url", "is this a reward server?") from error
        if not isinstance(health, dict) or health.get("status") != "ok":
            raise ConfigError(f"{self.url}/health does not answer with status ok", "url")
        if health.get("version") != VERSION:
            raise ConfigError(
                f"{self.url} speaks version {health.get('version')!r:.40}, this program {VERSION}", "url"
            )
        if health.get("kind") != self.kind:
            raise ConfigError(
                f"{self.url} offers a {health.get('kind')!r:.40} reward, not {self.kind!r}",
                "kind",
                "set 'kind' to what the server offers",
            )
        fields = health.get("required_fields", [])
        if not isinstance(fields, list) or not all(isinstance(one, str) for one in fields):
            raise ConfigError(f"{self.url}/health has unusable 'required_fields'", "url")
        self.required_fields = tuple(fields)
        self._limits = {
            name: value
            for name in ("max_images", "max_body_bytes")
            if isinstance(value := health.get(name), int) and value > 0
        }

    def unload(self) -> None:
        self._limits = None

    def _score(self, batch: RewardBatch) -> Tensor:
        if self._limits is None:
            raise RuntimeError(f"reward {self.name!r}: load() first")
        scores_B = torch.zeros(len(batch))
        for index in self._chunks(batch):
            body = encode_request(batch.select(index), self.kind)
            limit = self._limits.get("max_body_bytes")
            if limit is not None and len(body) > limit:
                raise ConfigError(
                    f"{len(index)} images need {len(body)} bytes, but {self.url} accepts {limit}",
                    "batch_size",
                    "lower it, or raise the server's --max-megabytes",
                )
            scores_B[index] = decode_answer(self._request("POST", "/reward", body), len(index), self.url)
        return scores_B

    def _chunks(self, batch: RewardBatch) -> list[list[int]]:
        """Indices of the images of each request; whole groups unless every image is judged on its own."""
        assert self._limits is not None
        most = min(self.batch_size, self._limits.get("max_images", self.batch_size))
        if self.kind == "pointwise":
            return [list(range(i, min(i + most, len(batch)))) for i in range(0, len(batch), most)]
        chunks: list[list[int]] = []
        for group in batch.group_ids():
            index = batch.members(group)
            if len(index) > self._limits.get("max_images", len(index)):
                raise ConfigError(
                    f"{self.url} accepts {most} images at once, but a group has {len(index)}", "batch_size"
                )
            if chunks and len(chunks[-1]) + len(index) <= most:
                chunks[-1] += index
            else:
                chunks.append(index)
        return chunks

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json", **self._token()}
        problem = ""
        for attempt in range(self.retries + 1):
            if attempt:
                log.warning("%s: %s; trying again", self.url, problem)
                self.pause(FIRST_PAUSE * 2 ** (attempt - 1))
            try:
                status, answer = self._once(method, path, body, headers)
            except (OSError, http.client.HTTPException) as error:
                problem = f"no answer ({type(error).__name__}: {error})"
                continue
            if status < 500:
                return self._accepted(status, answer)
            problem = f"error {status} of the server ({self._excerpt(answer)})"
        raise RewardUnavailable(
            f"reward server {self.url}: {problem}, {self.retries + 1} tries", "url", "is it running?"
        )

    def _accepted(self, status: int, answer: bytes) -> bytes:
        if status == 200:
            return answer
        if status in (401, 403):
            raise ConfigError(
                f"{self.url} refuses access ({status})", "token_env", f"set the variable {self.token_env}"
            )
        if status in (400, 422):
            raise RewardError(f"{self.url} refused the images: {self._excerpt(answer)}")
        raise ConfigError(f"{self.url} answered {status}: {self._excerpt(answer)}", "url")

    def _excerpt(self, answer: bytes) -> str:
        """The beginning of a server's answer, for messages and logs, with any token removed."""
        text = answer.decode("utf-8", "replace")
        token = os.environ.get(self.token_env, "").strip()
        if token:
            text = text.replace(token, "<token>")
        printable = "".join(one if one.isprintable() else " " for one in text[:300])
        return printable.strip() or "no reason given"

    def _token(self) -> dict[str, str]:
        token = os.environ.get(self.token_env, "").strip()
        if not token:
            return {}
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigError(f"the variable {self.token_env} does not hold a token", "token_env")
        return {"Authorization": f"Bearer {token}"}

    def _once(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """One complete exchange within ``timeout``; redirects are not followed."""
        connection = self._connection()
        expired = threading.Event()
        too_late = f"not done after {self.timeout:g} s"
        try:
            connection.connect()
            timer = threading.Timer(self.timeout, _expire, (expired, connection.sock))
            timer.daemon = True
            timer.start()
            try:
                connection.request(method, self.parts.path.rstrip("/") + path, body or None, headers)
                response = connection.getresponse()
                answer = response.read(MAX_ANSWER_BYTES + 1)
                if expired.is_set():
                    raise TimeoutError(too_late)
                if response.length and len(answer) <= MAX_ANSWER_BYTES:
                    raise http.client.IncompleteRead(answer, response.length)
            except (OSError, http.client.HTTPException) as error:
                if expired.is_set():
                    raise TimeoutError(too_late) from error
                raise
            finally:
                timer.cancel()
        except TimeoutError as error:
            # whichever timeout came first: ours, or the socket's own for one system call
            raise TimeoutError(too_late) from error
        finally:
            connection.close()
        if len(answer) > MAX_ANSWER_BYTES:
            raise RewardError(f"the answer of {self.url} is larger than {MAX_ANSWER_BYTES} bytes")
        return response.status, answer

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self.parts.hostname or "", self.parts.port
        connection = (
            http.client.HTTPSConnection(host, port, timeout=self.timeout, context=ssl.create_default_context())
            if self.parts.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=self.timeout)
        )
        connection.response_class = CheckedResponse
        return connection


def _expire(expired: threading.Event, sock: socket.socket) -> None:
    """Close a connection that another thread is waiting on. It may already be closed."""
    expired.set()
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        log.debug("closing a slow connection: %s", error)
