"""A connection to the other computer. Only this module knows about SSH."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from modules.remote.host_keys import fault_of_key, known_hosts
from modules.util.config.remote.RemoteConfig import RemoteConfig
from modules.util.errors import UserError
from modules.util.files.user_path import user_path
from modules.util.owned_files import shown

if TYPE_CHECKING:
    from asyncssh import SFTPClient, SSHClientConnection, SSHClientProcess, SSHKey

CONNECT_SECONDS, LOGIN_SECONDS, KEEP_ALIVE_SECONDS = 20.0, 60.0, 15.0
SHORT_OUTPUT, SHORT_SECONDS = 64 * 1024, 30.0
INSTALL = "python -m pip install -r requirements-remote.txt"

Ask = Callable[[str], str | None]
"""Asks the person for a password; ``None`` if nobody can answer."""
NOT_ACCEPTED = "Not accepted, please try again. "
"""Precedes a question whose last answer was wrong."""
OWN_QUESTIONS = ("Password of ", "Passphrase of ")
"""The beginnings of the program's own questions. The name of a file or a computer follows, which may be any
word.
"""


class Unreachable(UserError):
    """The other computer does not answer now, but may later."""


class Refused(UserError):
    """The other computer does not accept user, key or password."""


class Lost(UserError):
    """The connection ended."""


def check_package() -> None:
    """Check that the SSH package is installed.

    Raises:
        UserError: it is not.
    """
    try:
        import asyncssh  # noqa: F401
    except ImportError as error:
        raise UserError("remote runs need the package asyncssh", hint=f"install it: {INSTALL}") from error


def options_of(remote: RemoteConfig) -> dict[str, Any]:
    """The connection options of a computer, in terms of asyncssh."""
    made: dict[str, Any] = {"host": remote.host, "port": remote.port}
    if remote.user:
        made["username"] = remote.user
    if remote.key_file:
        made["client_keys"] = [str(user_path(remote.key_file, "key_file"))]
    return made


@asynccontextmanager
async def connected(remote: RemoteConfig, ask: Ask) -> AsyncIterator[Connection]:
    """Open a connection for the duration of a block.

    Raises:
        UserError: it is refused, or the computer is not trusted. Unreachable: there is no answer.
    """
    check_package()
    if not remote.host:
        raise UserError(
            "there is no computer to connect to", "remote.host", "enter the host; on the command line, --host"
        )
    async with AsyncExitStack() as stack:
        jump = remote.jump()
        tunnel = await stack.enter_async_context(_login(jump, ask, None)) if jump else None
        yield Connection(remote, await stack.enter_async_context(_login(remote, ask, tunnel)))


@asynccontextmanager
async def _login(
    remote: RemoteConfig, ask: Ask, tunnel: SSHClientConnection | None
) -> AsyncIterator[SSHClientConnection]:
    import asyncssh

    seen: list[SSHKey] = []
    try:
        connection = await _patiently(remote, ask, tunnel, seen)
    except asyncssh.HostKeyNotVerifiable:
        if not seen:
            raise
        raise fault_of_key(remote, seen[0]) from None
    except (asyncssh.PermissionDenied, asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise Refused(
            f"{remote.address()} refused the login: {shown(str(error))}",
            "remote.user",
            "check user and key_file; a key with a passphrase can be unlocked first: ssh-add FILE",
        ) from None
    except FileNotFoundError as error:
        raise UserError(
            f"the key {error.filename} does not exist", "remote.key_file", "check the path"
        ) from None
    except (OSError, asyncssh.Error, TimeoutError) as error:
        why = shown(str(error)) or "no answer in time"
        raise Unreachable(
            f"{remote.address()} cannot be reached: {why}",
            "remote.host",
            "check host and port, and whether the computer is on",
        ) from error
    async with connection:
        yield connection


async def _patiently(
    remote: RemoteConfig, ask: Ask, tunnel: SSHClientConnection | None, seen: list[SSHKey]
) -> SSHClientConnection:
    """Connect, and connect again as long as the person was typing: that takes longer than a connection may
    wait. What was typed is given again.

    Raises:
        TimeoutError: there is no answer in time, although nothing was asked.
    """
    typed: dict[str, str] = {}
    while True:
        known, asked = dict(typed), False

        def answer(question: str, known: dict[str, str] = known) -> str | None:
            nonlocal asked
            if question in known:
                return known.pop(question)
            given = ask(question)
            if given is not None:
                # an answer that was not accepted is replaced
                typed[question.removeprefix(NOT_ACCEPTED)], asked = given, True
            return given

        try:
            return await _connect(remote, answer, tunnel, seen)
        except TimeoutError:
            if not asked:
                raise


async def _connect(
    remote: RemoteConfig, ask: Ask, tunnel: SSHClientConnection | None, seen: list[SSHKey]
) -> SSHClientConnection:
    import asyncssh

    options = options_of(remote)
    if "client_keys" in options:
        options["client_keys"] = [_readable_key(key, ask) for key in options["client_keys"]]
    return await asyncssh.connect(
        **options, tunnel=tunnel, config=None, known_hosts=known_hosts(),
        client_factory=lambda: _client(remote, ask, seen),
        passphrase=lambda name: ask(f"Passphrase of {name}: ") or "",
        connect_timeout=CONNECT_SECONDS, login_timeout=LOGIN_SECONDS,
        keepalive_interval=KEEP_ALIVE_SECONDS, keepalive_count_max=4,
    )  # fmt: skip


def _readable_key(file: str, ask: Ask) -> str | SSHKey:
    """A key as asyncssh can take it. It cannot unlock a file without a public half next to it.

    Raises:
        asyncssh.KeyImportError: the file is not a key, or the passphrase is wrong.
    """
    import asyncssh

    if any(Path(f"{file}{ending}").is_file() for ending in (".pub", "-cert.pub")):
        return file
    try:
        return asyncssh.read_private_key(file)
    except asyncssh.KeyImportError as error:
        typed = ask(f"Passphrase of {file}: ") if str(error).startswith("Passphrase") else None
        if not typed:
            raise
        return asyncssh.read_private_key(file, typed)


def _client(remote: RemoteConfig, ask: Ask, seen: list[SSHKey]) -> Any:
    import asyncssh

    class Client(asyncssh.SSHClient):
        """Records the key of an untrusted computer, and forwards questions for a password."""

        tries = 3

        def __init__(self) -> None:
            self._asked: set[str] = set()

        def _ask(self, question: str) -> str | None:
            again = question in self._asked
            self._asked.add(question)
            return ask(f"{NOT_ACCEPTED}{question}" if again else question)

        def validate_host_public_key(self, host: str, addr: str, port: int, key: SSHKey) -> bool:
            seen.append(key)
            return False

        def password_auth_requested(self) -> str | None:
            self.tries -= 1
            return self._ask(f"Password of {remote.address()}: ") if self.tries >= 0 else None

        def kbdint_auth_requested(self) -> str | None:
            self.tries -= 1
            return "" if self.tries >= 0 else None

        def kbdint_challenge_received(
            self, name: str, instructions: str, lang: str, prompts: Sequence[tuple[str, bool]]
        ) -> list[str] | None:
            answers = [self._ask(f"{remote.address()}: {shown(text)} ") for text, _ in prompts]
            return None if None in answers else [one or "" for one in answers]

    return Client()


async def host_key(remote: RemoteConfig, ask: Ask) -> SSHKey:
    """Get the key that a computer presents, trusted or not.

    Raises:
        UserError: the computer cannot be reached.
    """
    check_package()
    import asyncssh

    async with AsyncExitStack() as stack:
        jump = remote.jump()
        tunnel = await stack.enter_async_context(_login(jump, ask, None)) if jump else None
        try:
            key = await asyncssh.get_server_host_key(remote.host, remote.port, tunnel=tunnel, config=None)
        except (OSError, asyncssh.Error) as error:
            raise Unreachable(
                f"{remote.address()} cannot be reached: {shown(str(error))}",
                "remote.host",
                "check host and port",
            ) from error
    if key is None:
        raise UserError(f"{remote.address()} sent no host key", "remote.host")
    return key


class Connection:
    """An open connection."""

    def __init__(self, remote: RemoteConfig, ssh: SSHClientConnection) -> None:
        self.remote, self._ssh = remote, ssh

    async def capture(self, line: Sequence[str]) -> tuple[int, bytes]:
        """Run a short command. Returns exit status and the first bytes of its output.

        Raises:
            UserError: the command does not end. Lost: the connection ended.
        """
        async with self.command(line) as command:
            try:
                return await asyncio.wait_for(command.end(), SHORT_SECONDS)
            except TimeoutError:
                raise UserError(f"{shown(line[0])} on {self.remote.address()} does not end") from None

    @asynccontextmanager
    async def command(self, line: Sequence[str]) -> AsyncIterator[Command]:
        """Run a command for the duration of a block.

        Raises:
            Lost: the connection ended.
        """
        import asyncssh

        try:
            # SSH passes a command as a single string, which the remote shell splits again
            process = await self._ssh.create_process(shlex.join(line), encoding=None)
        except (OSError, asyncssh.Error) as error:
            raise Lost(f"no command can be run on {self.remote.address()}: {shown(str(error))}") from error
        try:
            yield Command(self.remote, process)
        finally:
            process.close()

    async def put(self, name: str, data: bytes) -> tuple[str, str]:
        """Store a small file below the program's folder.

        Returns:
            The folder and the file, as absolute paths.

        Raises:
            UserError: the folder is not writable. Lost: the connection ended.
        """
        import asyncssh

        wanted = self.remote.directory.removeprefix("~/")
        try:
            async with self._ssh.start_sftp_client() as sftp:
                await sftp.makedirs(str(PurePosixPath(wanted, name).parent), exist_ok=True)
                root = str(await sftp.realpath(wanted))
                path = str(PurePosixPath(root, name))
                await _write(sftp, path, data)
        except asyncssh.SFTPConnectionLost as error:
            raise Lost(f"the connection to {self.remote.address()} ended") from error
        except asyncssh.SFTPError as error:
            raise UserError(
                f"the folder {wanted} on {self.remote.address()} cannot be written: {shown(str(error)) or 'failed'}",
                "remote.directory",
                "choose a folder of yours on a disk with free space",
            ) from error
        except (OSError, asyncssh.Error) as error:
            raise Lost(f"{self.remote.address()} offers no SFTP: {shown(str(error))}") from error
        return root, path


class Command:
    """A command running on the other computer."""

    def __init__(self, remote: RemoteConfig, process: SSHClientProcess[bytes]) -> None:
        self.remote, self._process = remote, process

    async def read(self) -> bytes:
        """Read its next output.

        Raises:
            Lost: the connection or the command ended.
        """
        block = await self._block(1 << 20)
        if not block:
            raise Lost(f"the connection to {self.remote.address()} ended")
        return block

    async def _block(self, size: int) -> bytes:
        import asyncssh

        try:
            return await self._process.stdout.read(size)
        except (OSError, asyncssh.Error) as error:
            raise Lost(f"the connection to {self.remote.address()} ended: {shown(str(error))}") from error

    async def write(self, data: bytes) -> None:
        """Write bytes to its input.

        Raises:
            Lost: the connection or the command ended.
        """
        import asyncssh

        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except (OSError, asyncssh.Error) as error:
            raise Lost(f"the connection to {self.remote.address()} ended: {shown(str(error))}") from error

    async def end(self) -> tuple[int, bytes]:
        """Wait for its end. Returns the exit status (-1 if there is none) and the first bytes of its
        remaining output.
        """
        parts, size = [], 0
        while block := await self._block(SHORT_OUTPUT):
            parts.append(block)
            size += len(block)
            if size > SHORT_OUTPUT:
                return -1, b""
        status = (await self._process.wait(check=False)).exit_status
        return -1 if status is None else status, b"".join(parts)


async def _write(sftp: SFTPClient, path: str, data: bytes) -> None:
    if await sftp.exists(path) and await sftp.getsize(path) == len(data):
        async with sftp.open(path, "rb") as stream:
            there: Any = await stream.read(len(data) + 1)
            if there == data:
                return
    temporary = f"{path}.{secrets.token_hex(8)}.tmp"
    async with sftp.open(temporary, "wb") as stream:
        await stream.write(data)
    await sftp.posix_rename(temporary, path)
