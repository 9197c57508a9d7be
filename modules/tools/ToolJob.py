"""A tool running in a separate process."""

from __future__ import annotations

import re
import sys
import threading
from collections import deque
from collections.abc import Sequence

from modules.runner.LineProcess import LineProcess
from modules.util.errors import UserError
from modules.util.program_files import ROOT

_PROGRESS = re.compile(r"^(\d+)/(\d+) ?(.*)")


class ToolJob:
    """A process that starts on creation. ``lines`` fills while it works with what it prints, including its notes and
    warnings on stderr; ``result`` is its last line on stdout. ``ended`` is set at its end, with ``fault`` if it failed.

    Args:
        script: a file in ``scripts``.
        words: its command line arguments.
        what: its name in messages.

    Raises:
        UserError: it cannot be started.
    """

    def __init__(self, script: str, words: Sequence[str], what: str) -> None:
        self.lines: deque[str] = deque()
        self.done, self.total, self.at, self.result = 0, 0, "", ""
        self.fault: UserError | None = None
        self.stopped = False
        self.ended = threading.Event()
        command = [sys.executable, str(ROOT / "scripts" / script), *words]
        self._process = LineProcess(command, b"", what, self._heard)
        threading.Thread(target=self._read, daemon=True).start()

    def _heard(self, line: str) -> None:
        if found := _PROGRESS.match(line):
            self.done, self.total, self.at = int(found[1]), int(found[2]), found[3]
        elif line.startswith(("note: ", "warning: ")):
            self.lines.append(line)

    def _read(self) -> None:
        try:
            for line in self._process.lines():
                self.result = line.decode("utf-8", "replace").rstrip("\n")
                self.lines.append(self.result)
        except UserError as error:
            self.fault = error
        finally:
            self._process.end()
            self.ended.set()

    def stop(self) -> None:
        """End the process, which first cleans up the folder. Waits briefly."""
        self.stopped = True
        self._process.stop()
