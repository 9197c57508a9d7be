"""Programs that need not import anything, which takes most of the time of a tiny run.

They are forks of a process that has imported torch and the trainer, or what picking needs, and has done nothing else:
each has a number, files,
signals, an environment and an exit status of its own, as a new process has. Tests that start a program for what it
trains use them. Those about starting, about launchers and about what a process imports do not. Where forks are not
safe, all programs are started as usual.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

POSSIBLE = sys.platform == "linux"


class _Server:
    """The process that forks. It is started for the first program, and ends with this process."""

    def __init__(self, kind: str) -> None:
        self._control, theirs = socket.socketpair()
        script = Path(__file__).with_name("server.py")
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(script), str(theirs.fileno()), kind],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stderr=self._said,
                env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            )  # fmt: skip
        self._replies = self._control.makefile("r")
        self._answer("ready")
        atexit.register(self.close)

    def _answer(self, start: str) -> str:
        line = self._replies.readline().strip()
        if not line.startswith(start):
            code = self._process.wait()
            self._said.seek(0)
            raise RuntimeError(f"the process that forks ended with {code}: {self._said.read().decode()}")
        return line.removeprefix(start)

    def close(self) -> None:
        self._replies.close()
        self._control.close()
        self._process.wait()
        self._said.close()

    def start(self, request: Mapping[str, Any], files: list[int]) -> int:
        """The number of a new process."""
        line = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(self._control, [line], files)
        self._control.sendall(line[sent:])
        return int(self._answer("pid "))


@cache
def _server(owner: int, kind: str) -> _Server:
    return _Server(kind)


class WarmProcess:
    """A Python program under way.

    Args:
        command: a script, and its arguments.
        output, errors: files that get what it prints.
        env: its environment.
    """

    def __init__(self, command: Sequence[str], output: Path, errors: Path, env: Mapping[str, str]) -> None:
        appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        files = [os.open(path, appending, 0o600) for path in (output, errors)]
        self._start("training", command, [os.open(os.devnull, os.O_RDONLY), *files], Path.cwd(), env)

    def _start(
        self, kind: str, command: Sequence[str], files: Sequence[int], folder: Path, env: Mapping[str, str]
    ) -> None:
        """Start it with its input, its output and its errors, which are then closed here."""
        self.args = list(command)
        self.returncode: int | None = None
        self._ended, report = os.pipe()
        request = {"arguments": self.args, "folder": str(folder), "environment": dict(env)}
        try:
            self.pid = _server(os.getpid(), kind).start(request, [*files, report])
        finally:
            for file in (*files, report):
                os.close(file)

    def poll(self) -> int | None:
        """Its exit status, if it has ended: minus a signal's number if one ended it."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status.

        Raises:
            TimeoutExpired: it has not ended after ``timeout`` seconds.
        """
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _look(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], seconds)[0]:
            said = os.read(self._ended, 4)
            os.close(self._ended)
            assert len(said) == 4, "the process that forks has ended first"
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(said, "little"))
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            # it may have ended since, which is told a moment later
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class PickingProcess(WarmProcess):
    """A command under way in which a person picks or compares: the part of ``subprocess.Popen`` that its tests use.

    Args:
        command: a script, and its arguments.
        folder: where it works.
        text: whether its pipes take and give text.

    Attributes:
        stdin, stdout: pipes. What it says on stderr is kept until ``communicate``.
    """

    def __init__(self, command: Sequence[str], folder: Path, text: bool = False) -> None:
        (theirs_in, mine_in), (mine_out, theirs_out) = os.pipe(), os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        files = [theirs_in, theirs_out, os.dup(self._errors.fileno())]
        try:
            self._start("picking", command, files, folder, os.environ)
        finally:
            self.stdin: IO[Any] = os.fdopen(mine_in, "w" if text else "wb")
            self.stdout: IO[Any] = os.fdopen(mine_out, "r" if text else "rb")

    def communicate(self, timeout: float | None = None) -> tuple[Any, str]:
        """Close its input and wait for its end; the rest of its output, and what it said on stderr.

        Raises:
            TimeoutExpired: it has not ended ``timeout`` seconds after it closed its output.
        """
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        with self.stdout:
            output = self.stdout.read()
        self.wait(timeout)
        with self._errors:
            self._errors.seek(0)
            return output, self._errors.read().decode()


def start_picking(
    script: Path, *arguments: object, folder: Path, text: bool = False
) -> PickingProcess | subprocess.Popen[Any]:
    """Start a command in which a person picks or compares, with pipes. ``communicate`` ends the talk with it."""
    command = [str(script), *map(str, arguments)]
    if POSSIBLE:
        return PickingProcess(command, folder, text)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *command], cwd=folder, text=text, **pipes)


def start_warm(
    script: Path, arguments: Sequence[str], output: Path, errors: Path, env: Mapping[str, str] | None = None
) -> WarmProcess | subprocess.Popen[bytes]:
    """Start a Python script.

    Args:
        output, errors: files that get what it prints; they may be the same.
        env: its environment; that of this process by default.
    """
    command, env = [str(script), *arguments], os.environ if env is None else env
    if POSSIBLE:
        return WarmProcess(command, output, errors, env)
    with output.open("ab") as out, errors.open("ab") as err:
        return subprocess.Popen([sys.executable, *command], stdout=out, stderr=err, env=env)


def run_warm(
    script: Path, arguments: Sequence[str], timeout: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``subprocess.run`` of a Python script, with its output as text."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder) / "output", Path(folder) / "errors"
        process = start_warm(script, arguments, output, errors, env)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        said = (path.read_text(encoding="utf-8") for path in (output, errors))
        return subprocess.CompletedProcess(process.args, code, *said)
