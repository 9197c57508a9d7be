"""An SSH server in this process with real commands and real files, on a free port of this computer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import asyncssh

CLOSE_SECONDS = 3.0


@cache
def made_key() -> Any:
    """A key for the clients of these tests."""
    return asyncssh.generate_private_key("ssh-ed25519")


class Server:
    """The other computer.

    Args:
        home: the home folder of its only user.
        environment: of its commands; the usual one without it.
    """

    def __init__(self, home: Path, environment: dict[str, str] | None = None) -> None:
        self.home = home
        self.environment = {**os.environ, "HOME": str(home), **(environment or {})}
        self.limit: int | None = None
        """Largest size of a file that its commands can write."""
        self.password = ""
        """Lets its user in without a key, if there is one."""
        self.received = 0
        self.on_data: Callable[[int], None] | None = None
        """Told how many bytes its commands were given so far; may end connections."""
        self.commands: list[str] = []
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self.port = 0
        self._connections: set[Any] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def fingerprint(self) -> str:
        return str(self.key.get_fingerprint())

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(30)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(30)

    def cut(self) -> None:
        """End all connections as a network does: silently."""
        for connection in list(self._connections):
            self._loop.call_soon_threadsafe(connection.abort)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _listen(self, port: int = 0) -> None:
        server = self

        class Owner(asyncssh.SSHServer):
            def connection_made(self, connection: Any) -> None:
                self._own = connection
                server._connections.add(connection)

            def connection_lost(self, error: Exception | None) -> None:
                server._connections.discard(self._own)

            def public_key_auth_supported(self) -> bool:
                return True

            def password_auth_supported(self) -> bool:
                return bool(server.password)

            def validate_password(self, username: str, password: str) -> bool:
                return password == server.password

            def connection_requested(self, host: str, port: int, from_host: str, from_port: int) -> bool:
                return True

            def validate_public_key(self, username: str, key: Any) -> bool:
                return bool(key == made_key().convert_to_public())

        class Files(asyncssh.SFTPServer):
            """Relative names start in the home folder, as they do everywhere."""

            def map_path(self, path: bytes) -> bytes:
                return os.fsencode(server.home / os.fsdecode(path))

            def realpath(self, path: bytes) -> bytes:
                return os.path.realpath(self.map_path(path))

        self._acceptor = await asyncssh.listen(
            "127.0.0.1", port, server_host_keys=[self.key], server_factory=Owner, sftp_factory=Files,
            process_factory=self._command, encoding=None,
        )  # fmt: skip
        self.port = self._acceptor.get_port()

    async def _close(self) -> None:
        self._acceptor.close()
        for connection in list(self._connections):
            connection.abort()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:  # what does not end by then ends with the tests
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)

    async def _command(self, process: Any) -> None:
        """Give a command to a real shell, and its end of the connection to the command."""
        self.commands.append(process.command)
        child = await asyncio.create_subprocess_shell(
            process.command if self.limit is None else f"ulimit -f {self.limit // 512}; {process.command}",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            env=self.environment, cwd=self.home, start_new_session=True,
        )  # fmt: skip
        given = asyncio.ensure_future(self._give(process, child))
        try:
            while block := await child.stdout.read(1 << 16):
                process.stdout.write(block)
                await process.stdout.drain()
            process.exit(await child.wait())
        except (OSError, asyncssh.Error):
            pass
        finally:
            given.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()

    async def _give(self, process: Any, child: Any) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            while block := await process.stdin.read(1 << 16):
                self.received += len(block)
                if self.on_data is not None:
                    self.on_data(self.received)
                child.stdin.write(block)
                await child.stdin.drain()
        child.stdin.close()


@contextmanager
def serving(home: Path, environment: dict[str, str] | None = None) -> Iterator[Server]:
    home.mkdir(parents=True, exist_ok=True)
    server = Server(home, environment)
    server.start()
    try:
        yield server
    finally:
        server.stop()
