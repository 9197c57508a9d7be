"""Whom the program connects to, and what it says when it does not."""

from __future__ import annotations

import asyncio
import sys

import asyncssh
import pytest

from modules.remote import Connection
from scripts import train_remote as script
from scripts.train_remote import main
from tests.remote.server import made_key, serving
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


def test_a_computer_known_on_its_usual_port_is_unknown_on_another_one(server, remote, config, home, capsys):
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    (home / ".ssh" / "known_hosts").write_text(f"127.0.0.1 {other}")
    assert main(["start", "--config-path", str(config)]) == 2
    error = said(capsys)
    assert f"the host [127.0.0.1]:{server.port} is unknown" in error and server.fingerprint in error
    assert main(["trust", *options(remote), "--fingerprint", server.fingerprint]) == 0
    assert main(["start", "--config-path", str(config)]) == 0


def test_slow_typing_connects_again_until_everything_was_answered(remote, monkeypatch):
    asked: list[str] = []

    async def connect(_remote, ask, _tunnel, _seen):
        for question in ("Password: ", "Code: "):
            before = len(asked)
            assert ask(question) == f"answer to {question}"
            if len(asked) > before:
                raise TimeoutError
        return "connected"

    monkeypatch.setattr(Connection, "_connect", connect)
    typing = Connection._patiently(
        remote, lambda question: asked.append(question) or f"answer to {question}", None, []
    )
    assert asyncio.run(typing) == "connected"
    assert asked == ["Password: ", "Code: "]


def test_a_computer_that_does_not_answer_is_not_connected_again(remote, monkeypatch):
    tries: list[int] = []

    async def connect(*_):
        tries.append(1)
        raise TimeoutError

    monkeypatch.setattr(Connection, "_connect", connect)
    with pytest.raises(TimeoutError):
        asyncio.run(Connection._patiently(remote, lambda _: None, None, []))
    assert len(tries) == 1


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
    assert "refused the login" in said(capsys)


def kept_on_the_disk(text: str, *folders) -> list[str]:
    """Files below the folders that hold a text."""
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return [str(path) for path in files if text.encode() in path.read_bytes()]


def test_a_password_is_asked_for_and_never_stored(server, config, home, tmp_path, monkeypatch, capsys):
    other = home / ".ssh" / "other"
    other.write_bytes(asyncssh.generate_private_key("ssh-ed25519").export_private_key())
    server.password, asked = "Kiefernzapfen-7", []
    answers = iter(["wrong", server.password])
    monkeypatch.setattr(script, "ask", lambda question: asked.append(question) or next(answers))
    assert main(["start", "--config-path", str(config), "--key-file", str(other)]) == 0
    assert len(asked) == 2 and all("me@127.0.0.1" in one and "Password" in one for one in asked)
    assert not kept_on_the_disk(server.password, home, tmp_path, server.home)
    assert server.password not in capsys.readouterr().out


def lock(place, phrase, kind: str = "openssh") -> None:
    """A key with a passphrase, and its public half next to it as ssh-keygen leaves it."""
    # the rounds of ssh-keygen; the default of asyncssh takes eight times as long at each look at the key
    place.write_bytes(made_key().export_private_key(kind, phrase, rounds=16, ignore_few_rounds=True))
    place.with_name(f"{place.name}.pub").write_bytes(made_key().export_public_key())


@pytest.mark.parametrize(("kind", "public"), [("openssh", True), ("openssh", False), ("pkcs8-pem", False)])
def test_a_key_with_a_passphrase_is_unlocked_by_typing_it(
    server, config, home, tmp_path, monkeypatch, kind, public
):
    locked, phrase, asked = home / ".ssh" / "locked", "Nebelhorn-12", []
    lock(locked, phrase, kind)
    if not public:
        locked.with_name("locked.pub").unlink()
    monkeypatch.setattr(script, "ask", lambda question: asked.append(question) or phrase)
    assert main(["start", "--config-path", str(config), "--key-file", str(locked)]) == 0
    assert asked and set(asked) == {f"Passphrase of {locked}: "}
    assert not kept_on_the_disk(phrase, home, tmp_path, server.home)


@pytest.mark.parametrize("public", [True, False])
def test_a_wrong_passphrase_is_an_error(server, config, home, monkeypatch, capsys, public):
    locked = home / ".ssh" / "locked"
    lock(locked, "Nebelhorn-12")
    if not public:
        locked.with_name("locked.pub").unlink()
    monkeypatch.setattr(script, "ask", lambda question: "wrong")
    assert main(["start", "--config-path", str(config), "--key-file", str(locked)]) == 2
    assert "ssh-add" in said(capsys) and not server.commands


def test_nobody_to_ask_is_an_error(server, config, home, monkeypatch, capsys):
    locked = home / ".ssh" / "locked"
    lock(locked, "Nebelhorn-12")
    monkeypatch.setattr(script, "ask", lambda question: None)
    assert main(["start", "--config-path", str(config), "--key-file", str(locked)]) == 2
    assert "ssh-add" in said(capsys) and not server.commands


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
