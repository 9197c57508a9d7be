"""What waits for the hash of a large file can be cancelled at once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from modules.remote.Far import Far
from modules.remote.fetching import Fetch
from modules.remote.Following import Following
from modules.remote.records import Record
from modules.remote.starting import Start, Wanted
from modules.util.config.load import load_config
from modules.util.config.remote.RemoteConfig import RemoteConfig
from tests.remote.support import small_program, write_light

REMOTE = RemoteConfig(host="gpu.example.org", user="me", python="/usr/bin/python3")
LARGE = 24 << 30
"""Bytes of a file without content on the disk, whose hash takes much longer than the limit."""
MOST_SECONDS = 2.0


class Waiting(Far):
    """Another computer that answers what comes before the hash."""

    def __init__(self, size: int) -> None:
        self.remote, self.size = REMOTE, size
        self.reached = asyncio.Event()

    async def ask(self, kind: Any, verb: str, *, note: Any = None, data: bytes = b"", **fields: Any) -> Any:
        if verb == "contents":
            return [["model/large.safetensors", self.size]]
        self.reached.set()
        return {"digests": {"model/large.safetensors": "0" * 64}, "look": {"directory": "/far"}}[verb]


def seconds_to_cancel(work: Callable[[Waiting], Awaitable[Any]], at_once: bool = False) -> float:
    """How long the loop of cancelled work takes to end."""
    asked = 0.0

    async def whole() -> None:
        nonlocal asked
        far = Waiting(LARGE)
        task = asyncio.ensure_future(work(far))
        if not at_once:
            await far.reached.wait()
        await asyncio.sleep(0.1)
        assert not task.done()
        asked = time.monotonic()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(whole())
    return time.monotonic() - asked


def large_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, LARGE)


def test_a_start_that_hashes_a_large_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_program(tmp_path / "program", monkeypatch)
    config = write_light(tmp_path / "job", REMOTE)
    large_file(tmp_path / "job" / "model.safetensors")
    start = Start(Wanted(REMOTE, load_config(config), "run-1"), lambda _: None)
    assert seconds_to_cancel(start.work) < MOST_SECONDS


def test_a_fetch_that_compares_a_large_model(tmp_path: Path) -> None:
    large_file(tmp_path / "run" / "model" / "large.safetensors")
    fetch = Fetch(Record("run-1", REMOTE, tmp_path / "run", 0.0), True, lambda _: None)
    assert seconds_to_cancel(fetch.work) < MOST_SECONDS


def test_following_long_events(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").write_text("{}\n")
    following = Following(Record("run-1", REMOTE, tmp_path / "run", 0.0), lambda _: None, lambda _: None)
    large_file(tmp_path / "run" / "events.jsonl")
    assert seconds_to_cancel(following.work, at_once=True) < MOST_SECONDS
