"""Another computer for every test, and a person's keys for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.remote import again
from modules.remote.there.runs import RUNS
from modules.runner.RunDirectory import RunDirectory
from modules.util.config.remote.RemoteConfig import RemoteConfig
from tests.remote.server import Server, made_key, serving
from tests.remote.support import small_program


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of this test, with a key."""
    place = tmp_path / "home"
    (place / ".ssh").mkdir(parents=True)
    (place / ".ssh" / "key").write_bytes(made_key().export_private_key())
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return place


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A computer with its own home folder and settings."""
    far = tmp_path / "far"
    with serving(far, {"TASTEMAKER_SETTINGS": str(far / "settings"), "OMP_NUM_THREADS": "1"}) as one:
        yield one


@pytest.fixture
def trusted(server: Server, home: Path) -> Server:
    """The same, with its key in the list of OpenSSH."""
    key = server.key.export_public_key().decode()
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {key}")
    return server


@pytest.fixture
def remote(server: Server, home: Path) -> RemoteConfig:
    """How it is reached."""
    return RemoteConfig(
        host="127.0.0.1",
        port=server.port,
        user="me",
        key_file=str(home / ".ssh" / "key"),
        python=sys.executable,
    )


@pytest.fixture
def program(trusted: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small program to copy; its trainers are ended with the test."""
    monkeypatch.setattr(again, "FIRST_SECONDS", 0.05)
    yield small_program(tmp_path / "program", monkeypatch)
    base = trusted.home / "tastemaker" / RUNS
    for path in base.iterdir() if base.is_dir() else ():
        for process in (RunDirectory(path).launched(), RunDirectory(path).trainer()):
            if process is not None:
                process.end(0.0)
