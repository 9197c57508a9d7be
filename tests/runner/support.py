"""Starting fake trainers and waiting for them."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import pytest

from modules.runner.RunDirectory import RunDirectory
from modules.util.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
FAKE = Path(__file__).with_name("fake_trainer.py")
PAGE = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
T = TypeVar("T")


def fake_command(run: RunDirectory, behaviour: str) -> list[str]:
    """Command line of a fake trainer."""
    return [sys.executable, str(FAKE), str(run.path), behaviour]


def start_fake(run: RunDirectory, behaviour: str) -> subprocess.Popen[bytes]:
    """A fake trainer that somebody else started (not the launcher)."""
    return subprocess.Popen(
        fake_command(run, behaviour), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def wait_until(condition: Callable[[], T], seconds: float = 30.0) -> T:
    """Poll ``condition`` until it is true; returns what it returned."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)
    return found


@contextmanager
def taken() -> Iterator[None]:
    """The run that this block claims belongs to another process. This is told after a tenth of a second, instead of
    the two seconds in which a watcher may let it go.
    """
    with (
        patch("modules.runner.RunDirectory.LOCK_PATIENCE", 0.1),
        pytest.raises(UserError, match="another process is training"),
    ):
        yield


def page_rows(heading: str) -> dict[str, str]:
    """First column of a table under a heading of docs/runs.md to the whole row."""
    part = re.search(rf"^#+ {heading}$(.*?)(?=^#+ |\Z)", PAGE, re.M | re.S).group(1)
    lines = [line for line in part.splitlines() if line.startswith("| `")]
    return {name: line for line in lines for name in re.findall(r"`(\w+)`", line.split("|")[1])}
