"""TensorBoard in a separate process, reachable from this computer only and ended with the window."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from modules.runner.outcome import last_lines
from modules.ui.texts import run as words
from modules.util.errors import UserError

HOST = "127.0.0.1"
FIELD = "tensorboard_port"
START_SECONDS = 60.0
END_SECONDS = 3.0
STEP_SECONDS = 0.1
# The pipe to the window closes however the window ends, so no server is left behind.
SERVER = (
    sys.executable,
    "-c",
    "import os, sys, threading\n"
    "threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()\n"
    "from tensorboard.main import run_main\n"
    "run_main()\n",
)


class TensorBoard:
    """Runs at most one server. Another folder or port replaces it.

    Args:
        server: command line, to which folder and address are added; the server ends when its input closes.
    """

    def __init__(self, server: Sequence[str] = SERVER) -> None:
        self._server = tuple(server)
        self._process: subprocess.Popen[bytes] | None = None
        self._shown: tuple[Path, int] | None = None
        self._opening = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Process id of the server while it is running."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def open(self, folder: Path, port: int) -> str:
        """Serve a folder, open it in the browser once it answers, and return the address. Not for the Tk
        thread.

        Raises:
            UserError: the folder is empty, the port is taken, or the server does not start.
        """
        if not folder.is_dir():
            raise UserError(
                f"{folder} does not exist", "tensorboard", "switch TensorBoard on and start training"
            )
        with self._opening:
            if self._shown != (folder, port) or self.pid is None:
                self.close()
                self._start(folder, port)
                self._shown = (folder, port)
        address = f"http://{HOST}:{port}"
        webbrowser.open(address)
        return address

    def _start(self, folder: Path, port: int) -> None:
        _check_free(port)
        line = [*self._server, "--logdir", str(folder), "--host", HOST, "--port", str(port)]
        with tempfile.TemporaryFile() as said:
            process = self._process = subprocess.Popen(
                line, stdin=subprocess.PIPE, stdout=said, stderr=subprocess.STDOUT
            )
            end = time.monotonic() + START_SECONDS
            while not _answers(port):
                if process.poll() is not None:
                    self.close()
                    raise UserError(
                        f"TensorBoard does not start: {_last_words(said)}",
                        hint="run the setup again if a package is missing",
                    )
                if time.monotonic() > end:
                    self.close()
                    raise UserError(f"TensorBoard does not answer on port {port}: {_last_words(said)}")
                time.sleep(STEP_SECONDS)

    def close(self) -> None:
        """End the server."""
        process, self._process, self._shown = self._process, None, None
        if process is None:
            return
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _check_free(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        if sys.platform != "win32":  # there it would allow sharing a port that is in use
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, port))
        except OSError as error:
            raise UserError(
                f"port {port}, which TensorBoard should use, cannot be used: {error.strerror}",
                FIELD,
                "choose another TensorBoard port on the Project page, or end the program that uses it",
            ) from error


def _answers(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _last_words(said: IO[bytes]) -> str:
    said.seek(0)
    return last_lines(said.read().decode("utf-8", errors="replace"), 3) or words.SAID_NOTHING
