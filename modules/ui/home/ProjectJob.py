"""One step of a project, running in a separate process: ``scripts/taste.py``."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modules.runner.LineProcess import LineProcess
from modules.util.jsonio import parse_json
from modules.util.program_files import ROOT

SCRIPT = ROOT / "scripts" / "taste.py"
_DONE = re.compile(r"(\d+)/([\d,]+)")


class ProjectJob:
    """A process that starts on creation. Call ``wait`` in a thread, ``stop`` from anywhere.

    Args:
        verb: command of ``taste.py``.
        what: its name in messages.

    Raises:
        UserError: it cannot be started.
    """

    def __init__(self, verb: str, folder: Path, what: str, arguments: Sequence[str] = ()) -> None:
        self.verb = verb
        self.stopped = False
        self.done, self.total = 0, 0
        command = [sys.executable, str(SCRIPT), verb, str(folder), *arguments, "--json"]
        self._process = LineProcess(command, b"", what, self._heard)

    def _heard(self, line: str) -> None:
        if found := _DONE.search(line):
            self.done, self.total = int(found[1]), int(found[2].replace(",", ""))

    def wait(self) -> dict[str, Any]:
        """Wait until it has ended and return its result.

        Raises:
            UserError: it could not do its work.
        """
        try:
            said = b"".join(self._process.lines())
        finally:
            self._process.end()
        result = parse_json(said, "result of the step")
        return result if isinstance(result, dict) else {}

    def stop(self) -> None:
        """End the process and its children, waiting briefly. What it has finished stays."""
        self.stopped = True
        self._process.stop()
