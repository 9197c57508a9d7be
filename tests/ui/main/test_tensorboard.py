"""The TensorBoard button: served to this computer alone, told when it cannot be, gone with the window."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from modules.runner.RunDirectory import RunDirectory
from modules.ui.run.TensorBoard import HOST, TensorBoard
from modules.util.errors import UserError
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.drivers import Hands
from tests.usual import usual

ROOT = Path(__file__).resolve().parents[3]
FAKE = """
import http.server, os, sys, threading
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(given["--logdir"].encode())
http.server.HTTPServer((given["--host"], int(given["--port"])), Page).serve_forever()
"""
SERVER = (sys.executable, "-c", FAKE)
OWNER = """
import sys, time
from pathlib import Path
import modules.ui.run.TensorBoard as module
module.webbrowser.open = lambda address: True
board = module.TensorBoard([sys.executable, "-c", sys.argv[1]] if sys.argv[1] else module.SERVER)
board.open(Path(sys.argv[2]), int(sys.argv[3]))
print(board.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses given to the browser."""
    found: list[str] = []
    monkeypatch.setattr("modules.ui.run.TensorBoard.webbrowser.open", found.append)
    return found


@pytest.fixture
def board(opened: list[str]) -> Iterator[TensorBoard]:
    made = TensorBoard(SERVER)
    yield made
    made.close()


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind((HOST, 0))
        return int(trial.getsockname()[1])


def gone(pid: int, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return str(answer.read().decode())


def listening(pid: int) -> set[str]:
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    found = [c for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    return {c.laddr.ip for c in found}


def test_it_answers_on_this_computer_alone(board: TensorBoard, opened: list[str], tmp_path: Path) -> None:
    port = free_port()
    address = board.open(tmp_path, port)
    assert opened == [address] == [f"http://127.0.0.1:{port}"]
    assert page(address) == str(tmp_path)
    assert board.pid is not None and listening(board.pid) == {"127.0.0.1"}


def test_the_same_folder_keeps_its_server_another_replaces_it(
    board: TensorBoard, opened: list[str], tmp_path: Path
) -> None:
    port = free_port()
    board.open(tmp_path, port)
    first = board.pid
    board.open(tmp_path, port)
    assert board.pid == first and len(opened) == 2
    other = tmp_path / "other"
    other.mkdir()
    assert page(board.open(other, port)) == str(other)
    assert first is not None and board.pid != first and gone(first)
    second = board.pid
    board.close()
    assert second is not None and board.pid is None and gone(second)


def test_a_taken_port_is_told(board: TensorBoard, opened: list[str], tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port}.*in use") as caught:
            board.open(tmp_path, port)
        assert caught.value.field == "tensorboard_port"
        assert "another TensorBoard port" in str(caught.value.hint)
        assert board.pid is None and opened == []
    board.open(tmp_path, port)
    assert len(opened) == 1


def test_what_a_server_says_that_does_not_start(opened: list[str], tmp_path: Path) -> None:
    board = TensorBoard((sys.executable, "-c", "raise SystemExit('ModuleNotFoundError: no tensorboard')"))
    with pytest.raises(UserError, match="does not start: ModuleNotFoundError: no tensorboard"):
        board.open(tmp_path, free_port())
    with pytest.raises(UserError, match="does not exist"):
        board.open(tmp_path / "none", free_port())
    assert opened == [] and board.pid is None


@pytest.mark.parametrize("number", usual([signal.SIGTERM, signal.SIGKILL], signal.SIGKILL))
def test_no_server_outlives_its_window_however_that_ends(tmp_path: Path, number: int) -> None:
    check_end(FAKE, tmp_path, number)


def check_end(server: str, folder: Path, number: int) -> None:
    line = [sys.executable, "-c", OWNER, server, str(folder), str(free_port())]
    owner = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert not gone(pid, 0.2)
    owner.send_signal(number)
    owner.wait(10)
    owner.stdout.close()
    assert gone(pid), "the server was left behind"


@pytest.mark.slow
def test_the_real_one(opened: list[str], tmp_path: Path) -> None:
    board, port = TensorBoard(), free_port()
    address = board.open(tmp_path, port)
    assert "TensorBoard" in page(address)
    pid = board.pid
    assert pid is not None and "127.0.0.1" in listening(pid) <= {"127.0.0.1", "::1"}
    with pytest.raises(UserError, match=f"port {port}"):
        TensorBoard().open(tmp_path, port)
    board.close()
    assert gone(pid)
    check_end("", tmp_path, signal.SIGKILL)


# -- in the window -------------------------------------------------------------------------------------------


def button(hands: Hands, text: str):  # type: ignore[no-untyped-def]
    hands.window.show_page("run")
    hands.rest()
    waiting = [hands.window.current_page()]
    while waiting:
        widget = waiting.pop()
        if widget.winfo_class() == "TButton" and str(widget.cget("text")) == text:
            return widget
        waiting.extend(widget.winfo_children())
    raise AssertionError(f"no button {text}")


def with_run(open_window: OpenWindow, folder: Path, port: int) -> Hands:
    run = RunDirectory(folder).create()
    run.tensorboard_dir.mkdir(exist_ok=True)
    hands = open_window()
    hands.window.tensorboard._server = SERVER
    hands.window.runs.attach(str(folder))
    hands.fill("tensorboard_port", str(port))
    return hands


@pytest.mark.gui
def test_the_button_opens_it_and_it_ends_with_the_window(
    open_window: OpenWindow, opened: list[str], tmp_path: Path
) -> None:
    port = free_port()
    hands = with_run(open_window, tmp_path / "run", port)
    hands.focus(button(hands, "TensorBoard"))
    hands.keys("<space>")
    hands.wait(lambda: opened, "the browser is not opened")
    hands.wait(lambda: f"http://127.0.0.1:{port}" in hands.status())
    pid = hands.window.tensorboard.pid
    assert pid is not None and page(opened[0]) == str(RunDirectory(tmp_path / "run").tensorboard_dir)
    hands.close()
    assert gone(pid)


@pytest.mark.gui
def test_a_taken_port_is_a_message_in_the_window(
    open_window: OpenWindow, opened: list[str], tmp_path: Path
) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        hands = with_run(open_window, tmp_path / "run", port)
        hands.click(button(hands, "TensorBoard"))
        hands.wait(lambda: hands.dialogs(), "nothing is said")
        assert "another TensorBoard port" in hands.dialogs()[0].message
        hands.expect_dialog(f"port {port}")
        hands.expect_status("TensorBoard is not open")
    free = free_port()
    hands.fill("tensorboard_port", str(free))
    hands.click(button(hands, "TensorBoard"))
    hands.wait(lambda: opened == [f"http://127.0.0.1:{free}"], "it does not open after all")


@pytest.mark.gui
def test_without_a_run_there_is_nothing_to_open(hands: Hands, opened: list[str]) -> None:
    hands.click(button(hands, "TensorBoard"))
    hands.expect_status("no run")
    assert opened == []
