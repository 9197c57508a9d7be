"""A process that draws curves with the functions of training, which the window itself does not load. No Tk here."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from modules.util.errors import UserError
from modules.util.jsonio import parse_json
from modules.util.program_files import ROOT

COMMAND = (sys.executable, str(ROOT / "scripts" / "curves.py"))


class CurveHelper:
    """Answers one config at a time; started with the first, and ended with ``end``.

    Args:
        command: what reads configs and prints curves.
    """

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = tuple(command)
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._asked = 0

    def ask(self, config: Mapping[str, Any], steps: int, epoch_steps: int = 0) -> dict[str, Any]:
        """The curves of a config; the first answer takes seconds. After an error, the next question starts a new
        process.

        Args:
            steps, epoch_steps: optimizer steps of the run and of its first epoch; 0 if the latter is not known.

        Raises:
            UserError: the process ended, or says something other than an answer.
        """
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        self._asked += 1
        number = self._asked
        try:
            length = {"steps": steps, "steps_per_epoch": epoch_steps}
            process.stdin.write(json.dumps({"number": number, "config": dict(config), **length}) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except (OSError, ValueError) as error:
            self._forget()
            raise UserError(f"the curves cannot be drawn: {error}") from error
        if not answer:
            self._forget()
            raise UserError("the curves cannot be drawn: their process ended", hint="see scripts/curves.py")
        try:
            said = parse_json(answer, "curves")
        except UserError:
            self._forget()
            raise
        # another line in between would be taken for the answer, and every later one would be late
        if not isinstance(said, dict) or said.pop("number", None) != number:
            self._forget()
            raise UserError("the curves cannot be drawn: the answer of their process is not valid")
        return said

    def _started(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._ended:
                raise UserError("the window is closed")
            if self._process is None:
                flags = getattr(subprocess, "CREATE_NO_WINDOW", 0)
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                    text=True, encoding="utf-8", errors="replace", creationflags=flags,
                )  # fmt: skip
            return self._process

    def _forget(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def end(self) -> None:
        """End the process, if there is one."""
        self._ended = True
        self._forget()
