"""HTTP requests to a program on this computer or its network that makes or describes images."""

from __future__ import annotations

import ipaddress
import json
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from modules.util.errors import ConfigError, UserError
from modules.util.files.user_folder import settings_folder
from modules.util.jsonio import parse_json, read_json
from modules.util.owned_files import shown
from modules.util.web.CheckedResponse import CheckedResponse

if TYPE_CHECKING:
    from requests.adapters import HTTPAdapter

CONNECT_SECONDS, READ_SECONDS = 5.0, 600.0
MOST_BYTES = 256 << 20
READ_TRIES, RETRY_SECONDS = 3, 0.3
LOGINS = "generators.json"


def host_of(url: str) -> str:
    """The host of an http or https address; empty if it is not such an address."""
    try:
        parts = urlsplit(url)
        # asked for because a wrong port raises, and so does a name with an empty or an overlong part
        _, host = parts.port, parts.hostname
        (host or "").encode("idna")
    except ValueError:
        return ""
    return host or "" if parts.scheme in ("http", "https") else ""


def may_hold_login(url: str) -> bool:
    """Return whether an address has a user name or password, or has something like it and cannot be read, for example
    because the password has a slash. In the path of an address, an ``@`` is a letter like others.
    """
    if "@" not in url or not host_of(url):
        return "@" in url
    return any("@" in part for part in urlsplit(url)._replace(path=""))


class HttpClient:
    """A client of one server. Only reads are retried; a request that makes an image is sent once.

    Args:
        what: name of the program, for messages.
        url: its address; only this computer and private networks, unless ``remote`` is set.
        remote: whether the person has allowed any address.
        sends: the data that would leave the computer, for the refusal message.
        seconds: timeout of an answer.
    """

    def __init__(
        self, what: str, url: str, remote: bool = False, sends: str = "prompts and adapters",
        seconds: float = READ_SECONDS,
    ) -> None:  # fmt: skip
        self.what, self.url, self._sends, self._seconds = what, url.rstrip("/"), sends, seconds
        host = host_of(self.url)
        if may_hold_login(self.url):
            # addresses are stored with projects and shown in messages
            raise ConfigError(
                f"the address of {what} must not hold a user name or password", "--url",
                f"write them into {settings_folder() / LOGINS}; see docs/taste.md and docs/tools.md",
            )  # fmt: skip
        if not host:
            raise ConfigError(f"{url!r} is not an address", "--url", "for example http://127.0.0.1:8188")
        if not remote:
            self._check_near(host)
        import requests  # only where there is a server: every start of the window would pay for it

        self._session = requests.Session()
        self._session.trust_env = False
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, _checking_adapter())
        self._log_in()

    def _check_near(self, host: str) -> None:
        try:
            found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
        except OSError as error:
            raise UserError(
                f"{self.what}: the host {host!r} is unknown", "--url", "check the address"
            ) from error
        near = (ipaddress.ip_address(str(one).split("%")[0]) for one in found)
        if not all(one.is_loopback or one.is_private for one in near):
            raise UserError(
                f"{self.what}: {self.url} is outside this computer and its network",
                "--url",
                f"{self._sends} would be sent there; --remote allows it",
            )

    def _log_in(self) -> None:
        """Log in with the credentials for this address in the settings folder: ``user`` and ``password``,
        ``token`` or ``cookies``.
        """
        path = settings_folder() / LOGINS
        if not path.is_file():
            return
        data = read_json(path, "file of logins")
        logins = data.items() if isinstance(data, Mapping) else ()
        login = {url.rstrip("/"): one for url, one in logins}.get(self.url, {})
        try:
            texts = {name: str(login[name]) for name in ("user", "password", "token") if name in login}
            cookies = {str(k): str(v) for k, v in login.get("cookies", {}).items()}
            sent = (texts.get("token", ""), *cookies.values())
            fits = all(text.isascii() and text.isprintable() for text in sent)
        except (AttributeError, KeyError, TypeError):
            fits = False
        if not fits:
            raise ConfigError(
                f"the entry of {self.url} in {path} is not a login",
                LOGINS,
                "see docs/taste.md and docs/tools.md",
            )
        if "user" in texts:
            self._session.auth = (texts["user"], texts.get("password", ""))
        if "token" in texts:
            self._session.headers["Authorization"] = f"Bearer {texts['token']}"
        self._session.cookies.update(cookies)

    def headers(self) -> dict[str, str]:
        """The credentials as headers, for another kind of connection to the same server."""
        import requests

        prepared = self._session.prepare_request(requests.Request("GET", self.url))
        return {
            name: str(prepared.headers[name])
            for name in ("Authorization", "Cookie")
            if name in prepared.headers
        }

    def get(self, path: str, parameters: Mapping[str, str] | None = None) -> bytes:
        """Read a body, with retries. Raises ``UserError`` after a few attempts."""
        return self._ask_again("GET", path, {}, parameters)[1]

    def _ask_again(
        self, method: str, path: str, content: Mapping[str, Any], parameters: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        for number in range(1, READ_TRIES + 1):
            try:
                return self._ask(method, path, content, parameters)
            except _Passing as error:
                if number == READ_TRIES:
                    raise UserError(error.message, hint=error.hint) from error
                time.sleep(RETRY_SECONDS * number)
        raise AssertionError("unreachable")

    def get_json(self, path: str) -> Any:
        """``get``, as JSON."""
        return parse_json(self.get(path), f"answer of {self.what}")

    def post(self, path: str, body: Mapping[str, Any], again: bool = False) -> Any:
        """Send a request once and return its JSON answer; ``None`` for an empty one.

        Args:
            again: whether repeating it does no harm, so that it is retried like a read.

        Raises:
            Refused: the server rejected the request.
            UserError: the server cannot be reached, or failed.
        """
        return self._answer(*(self._ask_again if again else self._ask)("POST", path, {"json": body}))

    def upload(self, path: str, name: str, data: bytes, fields: Mapping[str, str]) -> Any:
        """Send an image as a form, with retries, and return the JSON answer. It raises what ``post`` raises."""
        form = {"data": dict(fields), "files": {"image": (name, data)}}
        return self._answer(*self._ask_again("POST", path, form))

    def _answer(self, status: int, data: bytes) -> Any:
        if 400 <= status < 500:
            raise Refused(self, status, data)
        return parse_json(data, f"answer of {self.what}") if data.strip() else None

    def _ask(
        self, method: str, path: str, content: Mapping[str, Any], parameters: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        import requests

        hint = f"is {self.what} running at {self.url}?"
        try:
            with self._session.request(
                method, f"{self.url}/{path}", params=parameters, **content, stream=True, allow_redirects=False,
                timeout=(CONNECT_SECONDS, self._seconds),
            ) as response:  # fmt: skip
                data = bytearray()
                for block in response.iter_content(1 << 16):
                    data += block
                    if len(data) > MOST_BYTES:
                        raise UserError(f"{self.what} sent more than {MOST_BYTES >> 20} MiB for {path}")
        except requests.ConnectionError as error:
            raise _Passing(
                f"{self.what} at {self.url} cannot be reached, or the connection was lost", hint=hint
            ) from error
        except (requests.RequestException, ValueError) as error:
            # a redirection that is not an address is a plain ValueError
            raise _Passing(f"{self.what} at {self.url}: {type(error).__name__}", hint=hint) from error
        if response.status_code in (401, 403):
            raise UserError(
                f"{self.what} at {self.url} requires a login",
                hint=f"write it into {settings_folder() / LOGINS}; see docs/taste.md and docs/tools.md",
            )
        if (
            response.status_code in (408, 429)
            or response.status_code >= 500
            or 300 <= response.status_code < 400
        ):
            said = shown(bytes(data[:300]).decode("utf-8", "replace").strip())
            raise _Passing(f"{self.what} failed with status {response.status_code}: {said}", hint=hint)
        if response.status_code >= 400 and method == "GET":
            raise UserError(f"{self.what} has no {path} (status {response.status_code})", hint=hint)
        return response.status_code, bytes(data)


def _checking_adapter() -> HTTPAdapter:
    """An adapter whose connections read answers as ``CheckedResponse``."""
    from requests.adapters import HTTPAdapter

    adapter = HTTPAdapter()
    pools: dict[str, Any] = {}
    for scheme, pool in adapter.poolmanager.pool_classes_by_scheme.items():
        of_pool: Any = pool
        connection = type("Connection", (of_pool.ConnectionCls,), {"response_class": CheckedResponse})
        pools[scheme] = type("Pool", (pool,), {"ConnectionCls": connection})
    adapter.poolmanager.pool_classes_by_scheme = pools
    return adapter


class _Passing(UserError):
    """A failure that may be transient."""


class Refused(UserError):
    """The server rejected the request.

    Args:
        data: its answer.
    """

    def __init__(self, client: HttpClient, status: int, data: bytes) -> None:
        try:
            self.said: Any = json.loads(data)
        except (ValueError, RecursionError):
            self.said = data[:300].decode("utf-8", "replace")
        said = "".join(sign if sign.isprintable() else " " for sign in str(self.said)[:600])
        super().__init__(f"{client.what} refused (status {status}): {said}")
