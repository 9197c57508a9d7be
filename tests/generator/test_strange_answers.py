"""Another program at the address, or one that answers in another way, ends with a message, never with a traceback."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from modules.generator.Generator import Generator, ImageRequest
from modules.generator.registry import make_generator
from modules.reward.remote import check_url
from modules.util.errors import UserError
from modules.util.web import HttpClient as http
from tests.generator.servers import SERVERS, Answer, Server

CONTROL = "\x1b]0;taken\x07\r\x9b2J\u202e"
SESSION: dict[str, Any] = {"session_id": "s"}
QUEUED: dict[str, Any] = {"prompt_id": "a"}
ANSWERS: list[Any] = [
    None, {}, [], "text", 3, {"error": "Unexpected endpoint"}, [1], [{}], {"system": 1}, {**SESSION, "files": [1]},
    {**SESSION, "images": 3}, {**SESSION, "images": {"a": 1}}, {**QUEUED, "queue_running": [1], "a": {}},
    {**QUEUED, "a": "x"}, {**QUEUED, "a": {"status": None}},
    {**QUEUED, "a": {"status": {"status_str": "success"}, "outputs": {"9": {"images": [1]}}}},
    {**QUEUED, "a": {"status": {"status_str": "error", "messages": [["execution_error", None]]}}},
    {**QUEUED, "a": {"status": {"status_str": "error", "messages": [["execution_error", {}, 1]]}}},
]  # fmt: skip


class Strange(Server):
    """Gives one answer to everything."""

    MAKES = "/nothing"
    answer: Any = None
    status = 200

    def get(self, path: str, query: dict[str, str]) -> Answer:
        return 200, self.answer

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        return self.status, self.answer


def begin(generator: Generator) -> None:
    next(generator.generate([ImageRequest("a fox", 1)]))


def make(generator: Any) -> None:
    generator.make(ImageRequest("a fox", 1), "")


@pytest.mark.parametrize("kind", SERVERS, ids=lambda kind: kind.KEY)
@pytest.mark.parametrize("act", [begin, make], ids=lambda act: act.__name__)
def test_an_answer_of_another_kind_is_one_message(
    kind: type[Server], act: Callable[[Generator], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "RETRY_SECONDS", 0.0)
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
    server = Strange(tmp_path)
    with server.running() as url:
        for server.answer in ANSWERS:
            with pytest.raises(UserError):
                act(make_generator(kind.KEY, {**kind.SETTINGS, "url": url}))


@pytest.mark.parametrize(
    "said", [{"node_errors": [1]}, {"node_errors": {"3": None}}, {"node_errors": {"3": {"errors": 1}}}]
)
def test_a_refusal_of_another_kind_is_one_message(
    said: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
    server = Strange(tmp_path)
    server.status, server.answer = 400, said
    with server.running() as url, pytest.raises(UserError):
        make(make_generator("comfyui", {"checkpoint": "a", "url": url}))


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (400, {"error": {"message": CONTROL}}),
        (400, {"node_errors": {CONTROL: {"errors": [{"details": CONTROL}]}}}),
        (200, {**QUEUED, "a": {"status": {"status_str": "error", "messages": [["execution_error", {
            "node_type": CONTROL, "exception_message": CONTROL}]]}}}),
    ],
)  # fmt: skip
def test_what_comfyui_says_cannot_control_the_terminal(
    status: int, answer: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
    server = Strange(tmp_path)
    server.status, server.answer = status, answer
    with server.running() as url, pytest.raises(UserError) as raised:
        make(make_generator("comfyui", {"checkpoint": "a", "url": url}))
    said = str(raised.value)
    assert "taken" in said and said.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n" + b"x" * 5000,
        b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 500 No\r\nContent-Length: 11\r\n\r\n\x1b]0;taken\x07x",
    ],
)
def test_a_broken_answer_is_a_message_that_cannot_control_the_terminal(
    raw: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "RETRY_SECONDS", 0.0)
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            # an attempt over the connection of the last one, whose end has not arrived yet, is not accepted here
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(1 << 16)
                        connection.sendall(raw)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(UserError, match="A1111") as raised:
            http.HttpClient("A1111", f"http://127.0.0.1:{listener.getsockname()[1]}").get("image")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert raised.value.message.isprintable()


@pytest.mark.parametrize(
    ("begun", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" "),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: ", b"x", marks=pytest.mark.slow),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    ],
    ids=["body", "head", "pieces"],
)
def test_an_answer_that_arrives_byte_by_byte_ends(
    begun: bytes, piece: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "READ_TRIES", 1)
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sent: list[int] = []

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(begun)
                for number in range(60):
                    time.sleep(0.1)
                    connection.sendall(piece)
                    sent.append(number)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(UserError, match="A1111"):
            http.HttpClient("A1111", f"http://127.0.0.1:{listener.getsockname()[1]}", seconds=0.5).get("image")
        thread.join()
    assert len(sent) < 40


@pytest.mark.parametrize("url", ["http://[::1", "http://192.168..5:7860", f"http://{'a' * 70}.local", "http://h:x"])
def test_an_address_with_a_slip_is_a_message(url: str) -> None:
    with pytest.raises(UserError, match="address|unknown") as raised:
        make_generator("a1111", {"url": url})
    assert raised.value.field == "--url"
    with pytest.raises(UserError, match="address"):
        make_generator("a1111", {"url": url, "remote": True})


@pytest.mark.parametrize("kind", SERVERS, ids=lambda kind: kind.KEY)
def test_a_password_in_the_address_is_refused_and_not_repeated(kind: type[Server]) -> None:
    with pytest.raises(UserError, match="password") as raised:
        make_generator(kind.KEY, {**kind.SETTINGS, "url": "http://me:hush-hush@127.0.0.1:1"})
    assert raised.value.field == "--url" and "hush-hush" not in str(raised.value)
    assert "generators.json" in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://me:hush/hush@127.0.0.1:7860", "http://me:hush#x@127.0.0.1:7860", "http://me:hu?sh@127.0.0.1:7860",
        "https://me:hush@127.0.0.1:786O", "me:hush@127.0.0.1:7860", "http://me:123#hush@127.0.0.1:7860",
    ],
)  # fmt: skip
def test_a_password_in_an_address_that_cannot_be_read_is_not_repeated(url: str) -> None:
    with pytest.raises(UserError, match="password") as raised:
        make_generator("a1111", {"url": url})
    assert "hush" not in str(raised.value) and "hu?sh" not in str(raised.value)
    with pytest.raises(UserError, match="password") as raised:
        check_url(url)
    assert "hush" not in str(raised.value) and "hu?sh" not in str(raised.value)


def test_an_at_sign_in_the_path_of_an_address_is_no_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path))
    assert http.HttpClient("A1111", "http://127.0.0.1:1/@me/").url == "http://127.0.0.1:1/@me"
    check_url("http://127.0.0.1:1/@me")


@pytest.mark.parametrize("kind", SERVERS, ids=lambda kind: kind.KEY)
def test_a_program_that_is_ended_stops_the_image_that_is_being_made(
    kind: type[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
    cancelled = []
    with kind(tmp_path).running() as url:
        generator = make_generator(kind.KEY, {**kind.SETTINGS, "url": url})

        def ended(request: ImageRequest, adapter: str) -> bytes:
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL, "the signal would kill the test"
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("the signal was ignored")

        monkeypatch.setattr(generator, "make", ended)
        monkeypatch.setattr(generator, "cancel", lambda: cancelled.append(True))
        with pytest.raises(KeyboardInterrupt):
            begin(generator)
    assert cancelled == [True]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("kind", SERVERS, ids=lambda kind: kind.KEY)
def test_a_stop_stays_a_stop_if_the_program_is_gone_by_then(
    kind: type[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "RETRY_SECONDS", 0.0)
    monkeypatch.setenv("TASTEMAKER_SETTINGS", str(tmp_path / "settings"))
    server = kind(tmp_path)
    with server.running() as url:
        generator = make_generator(kind.KEY, {**kind.SETTINGS, "url": url})

        def stop(request: ImageRequest, adapter: str) -> bytes:
            raise KeyboardInterrupt

        def gone() -> None:
            raise UserError("it cannot be reached")

        monkeypatch.setattr(generator, "make", stop)
        monkeypatch.setattr(generator, "cancel", gone)
        with pytest.raises(KeyboardInterrupt):
            begin(generator)
