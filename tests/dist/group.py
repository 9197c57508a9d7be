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


def run_group(folder: Path, script: Path, *arguments: str, timeout: float = 240.0) -> str:
    """Run a script in two processes; both must end without an error.

    Args:
        folder: gets what they print.

    Returns:
        What they printed.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    outputs = [folder / f"output-{rank}.txt" for rank in range(2)]
    for output in outputs:
        output.unlink(missing_ok=True)
    started = [
        start_warm(
            script, arguments, output, output,
            {**environment(), **group, "MASTER_PORT": port, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank, output in enumerate(outputs)
    ]  # fmt: skip
    end = time.monotonic() + timeout
    try:
        while None in (codes := [one.poll() for one in started]) and time.monotonic() < end:
            if any(codes):
                end = min(end, time.monotonic() + SOON)
            time.sleep(0.02)
    finally:
        for one in started:
            one.kill()
            one.wait()
    said = "".join(output.read_text(encoding="utf-8", errors="replace") for output in outputs)
    assert codes == [0, 0], said
    return said


def run_two(config: Path, *arguments: str) -> str:
    """Train in two processes; returns what they printed."""
    return run_group(config.parent, TRAIN, "--config-path", str(config), *arguments)
