"""Whom the program connects to, and what it says when it does not."""

from __future__ import annotations

import sys

import asyncssh
import pytest

from scripts.train_remote import main
from tests.remote.server import serving
from tests.remote.support import write_light

pytestmark = pytest.mark.child


def said(capsys) -> str:
    found = capsys.readouterr().err
    assert "Traceback" not in found and found.startswith("error: ")
    return found


def options(remote) -> list[str]:
    return ["--host", remote.host, "--port", str(remote.port), "--user", "me", "--key-file", remote.key_file]


@pytest.fixture
def config(tmp_path, remote, program):
    return write_light(tmp_path / "job", remote)


def test_an_unknown_computer_is_refused_until_it_is_trusted(server, remote, program, config, home, capsys):
    (home / ".ssh" / "known_hosts").unlink()
    assert main(["start", "--config-path", str(config)]) == 2
    error = said(capsys)
    assert server.fingerprint in error and f"trust --host 127.0.0.1 --port {server.port}" in error
    assert not server.commands
    assert main(["trust", *options(remote), "--fingerprint", "SHA256:another"]) == 2
    assert server.fingerprint in said(capsys)
    assert main(["trust", *options(remote), "--fingerprint", server.fingerprint]) == 0
    assert main(["start", "--config-path", str(config)]) == 0
    assert not (home / ".ssh" / "known_hosts").exists()


def test_another_key_than_the_trusted_one_is_refused(server, config, home, capsys):
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {other}")
    assert main(["start", "--config-path", str(config)]) == 2
    error = said(capsys)
    assert "is not the trusted one" in error and server.fingerprint in error and "known_hosts" in error
    assert not server.commands


def test_a_damaged_list_of_hosts_is_named(config, home, capsys):
    (home / ".ssh" / "known_hosts").write_text("127.0.0.1 ssh-ed25519 AAAA-not-a-key")
    assert main(["start", "--config-path", str(config)]) == 2
    assert "known" in said(capsys)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["--key-file", "no/such/key"], "remote.key_file"),
        (["--host", ""], "remote.host"),
        (["--host", "not a host"], "remote.host"),
        (["--proxy-jump", "a b"], "remote.proxy_jump"),
        (["--port", "1"], "cannot be reached"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(config, capsys, changes, says):
    assert main(["start", "--config-path", str(config), *changes]) == 2
    error = said(capsys)
    assert says in error and len(error.splitlines()) <= 2


def test_a_key_that_does_not_open_it(server, config, home, capsys):
    other = home / ".ssh" / "other"
    other.write_bytes(asyncssh.generate_private_key("ssh-ed25519").export_private_key())
    assert main(["start", "--config-path", str(config), "--key-file", str(other)]) == 2
    assert "does not let you in" in said(capsys)


def test_a_jump_host_is_checked_as_well(server, trusted, remote, config, home, tmp_path, capsys):
    with serving(tmp_path / "gate") as gate:
        jump = ["--proxy-jump", f"me@127.0.0.1:{gate.port}"]
        assert main(["start", "--config-path", str(config), *jump]) == 2
        assert gate.fingerprint in said(capsys)
        assert (
            main(
                ["trust", "--host", "127.0.0.1", "--port", str(gate.port), "--fingerprint", gate.fingerprint]
            )
            == 0
        )
        assert main(["start", "--config-path", str(config), *jump]) == 0
        assert server.commands and not gate.commands


def test_no_run_is_known_at_first(capsys):
    for verb in ("follow", "fetch", "status", "clean"):
        assert main([verb]) == 2
        assert "no remote run was started from here" in said(capsys)


def test_a_missing_package_names_the_line_that_installs_it(config, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    assert main(["start", "--config-path", str(config)]) == 2
    assert "pip install -r requirements-remote.txt" in said(capsys)
