"""Cases of the settings of another computer: what is asked of it, by a stand-in for the library of SSH."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest import mock

import asyncssh

from modules.remote.Far import far_side
from modules.util.config.load import load_config
from modules.util.errors import UserError
from tests.house.acts.bases import pictures
from tests.house.acts.case import Case
from tests.house.acts.outcomes import See


class Asked:
    """A connection that notes what is asked for, and has a Python but no place for files."""

    def __init__(self) -> None:
        self.notes: list[Any] = []
        self.stdout = self.stdin = self
        self.exit_status = 0
        self._said = b""

    async def connect(self, **options: Any) -> Asked:
        self.notes.append({name: options.get(name) for name in ("host", "port", "username", "client_keys")})
        return self

    async def create_process(self, line: str, **_: Any) -> Asked:
        self.notes.append(line)
        self._said = b"python 3 11\n"
        return self

    async def read(self, _: int) -> bytes:
        said, self._said = self._said, b""
        return said

    async def wait(self, **_: Any) -> Asked:
        return self

    def close(self) -> None:
        return None

    def start_sftp_client(self) -> Asked:
        return self

    async def makedirs(self, path: str, **_: Any) -> None:
        self.notes.append(path)
        raise asyncssh.SFTPFailure("full")

    async def __aenter__(self) -> Asked:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


def asked_of(folder: Path, config: Path) -> str:
    """What a start asks of the other computer."""
    remote, asked = load_config(config).remote, Asked()

    async def work() -> None:
        async with far_side(remote, lambda _: None):
            raise AssertionError("there is no place for files")

    with mock.patch.object(asyncssh, "connect", asked.connect):
        try:
            asyncio.run(work())
        except UserError as error:
            asked.notes.append(error.message.partition(" on ")[0])
    return json.dumps(asked.notes)


REACHED = See("what is asked of the other computer", asked_of, lambda notes: notes)
THERE = {"remote.host": "gpu.example.org"}
CASES = [
    Case("remote.host", pictures, "other.example.org", REACHED, THERE),
    Case("remote.port", pictures, 2222, REACHED, THERE),
    Case("remote.user", pictures, "me", REACHED, THERE),
    Case("remote.key_file", pictures, "keys/gpu", REACHED, THERE),
    Case("remote.directory", pictures, "elsewhere", REACHED, THERE),
    Case("remote.python", pictures, "environment/bin/python", REACHED, THERE),
    Case("remote.proxy_jump", pictures, "me@gate.example.org:2200", REACHED, THERE),
]
