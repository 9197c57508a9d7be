"""A helper process that answers in lines."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from modules.runner.ProcessId import ProcessId
from modules.util.errors import UserError, refused_as
from modules.util.jsonio import parse_json

KEPT_LINES = 20


class LineProcess:
    """Runs a command, passes its whole input at once, and yields the lines it prints.

    The process ends with this object (``end``), or when nobody reads its output any more.

    Args:
        what: its name in messages ("the sampler").
        heard: called with every line on stderr, in a thread.
    """

    def __init__(
        self, command: Sequence[str], data: bytes, what: str, heard: Callable[[str], None] = lambda line: None
    ) -> None:
        self._what, self._heard = what, heard
        self._said: deque[str] = deque(maxlen=KEPT_LINES)
        with refused_as(f"{command[0]} cannot be started"):
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"},
                # Ctrl+C is for the reader of the lines, who then ends this process
                start_new_session=True,
            )
        self._id = ProcessId.of(self._process.pid)
        self._threads = [
            threading.Thread(target=target, args=arguments, daemon=True)
            for target, arguments in ((self._write, (data,)), (self._listen, ()))
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            with self._process.stdin as stream:
                stream.write(data)
        except OSError as error:
            # it has ended; its exit status tells why
            self._said.append(f"it did not read its input: {error.strerror}")

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line.decode("utf-8", "replace").rstrip())
            self._heard(self._said[-1])

    def lines(self) -> Iterator[bytes]:
        """Yield its lines as they arrive.

        Raises:
            UserError: it failed. The message contains its last output.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):
                yield line
        status = self._process.wait()
        for thread in self._threads:
            thread.join(5.0)
        if status != 0:
            raise self._fault(status)

    def _fault(self, status: int) -> UserError:
        errors = [i for i, line in enumerate(self._said) if line.startswith("error: ")]
        if errors:
            first, *rest = list(self._said)[errors[-1] :]
            hint = " ".join(line.strip().removeprefix("->").strip() for line in rest)
            return UserError(f"{self._what}: {first.removeprefix('error: ')}", hint=hint or None)
        said = "\n".join(self._said)
        return UserError(f"{self._what} ended with status {status}:\n{said}", hint="try again")

    def stop(self) -> None:
        """End the process, if it is still running, while another thread reads its lines."""
        if self._process.poll() is None and self._id is not None:
            self._id.end(grace=5.0)

    def end(self) -> None:
        """End the process, if it is still running, once nobody reads its lines any more."""
        self.stop()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


def result_of(process: LineProcess) -> dict[str, Any]:
    """Wait until a helper has ended, and return the last of its lines that is a JSON object; empty if there
    is none.

    Raises:
        UserError: it failed.
    """
    said: dict[str, Any] = {}
    try:
        for line in process.lines():
            with suppress(UserError):
                told = parse_json(line, "line of a helper")
                said = told if isinstance(told, dict) else said
    finally:
        process.end()
    return said
