"""Two processes of one run, which are told of each other as a launcher would tell them: for tests of what they train.
Tests of launchers start one.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

from tests.children.warm import start_warm
from tests.trainer.builders import ROOT, environment

TRAIN = ROOT / "scripts" / "train.py"
SOON = 30.0
"""Seconds in which the others end after one that failed."""


class Group:
    """Two processes of one run under way.

    Args:
        folder: gets what they print.
        script: what both start, with the arguments.

    Attributes:
        processes: by their rank.
    """

    def __init__(self, folder: Path, script: Path, *arguments: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        self._outputs = [folder / f"output-{rank}.txt" for rank in range(2)]
        for output in self._outputs:
            output.unlink(missing_ok=True)
        self.processes = [
            start_warm(
                script, arguments, output, output,
                {**environment(), **group, "MASTER_PORT": port, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank, output in enumerate(self._outputs)
        ]  # fmt: skip

    def said(self) -> str:
        """What both have printed."""
        return "".join(output.read_text(encoding="utf-8", errors="replace") for output in self._outputs)

    def ended(self, timeout: float = 240.0) -> str:
        """Wait for their end, which must be without an error; returns what they printed."""
        end = time.monotonic() + timeout
        try:
            while None in (codes := [one.poll() for one in self.processes]) and time.monotonic() < end:
                if any(codes):
                    end = min(end, time.monotonic() + SOON)
                time.sleep(0.02)
        finally:
            for one in self.processes:
                one.kill()
                one.wait()
        assert codes == [0, 0], self.said()
        return self.said()


def run_group(folder: Path, script: Path, *arguments: str, timeout: float = 240.0) -> str:
    """Run a script in two processes; both must end without an error.

    Args:
        folder: gets what they print.

    Returns:
        What they printed.
    """
    return Group(folder, script, *arguments).ended(timeout)


def run_two(config: Path, *arguments: str) -> str:
    """Train in two processes; returns what they printed."""
    return run_group(config.parent, TRAIN, "--config-path", str(config), *arguments)
