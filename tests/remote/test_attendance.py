"""The window accompanies a run: commands wait for no file, none is lost silently, and an end is always told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from modules.remote import Attendance as module
from modules.remote.Attendance import Attendance
from modules.remote.Connection import Lost
from modules.runner.status import read_status
from tests.remote.support import newest
from tests.remote.test_following import run
from tests.runner.support import wait_until

pytestmark = pytest.mark.child
__all__ = ["run"]
LONG = 40.0


class Accompanied:
    """Accompanies the newest run, and keeps what is told."""

    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.answers: asyncio.Queue[tuple[str, bool, str]] = asyncio.Queue()
        self.attendance = Attendance(
            newest(), threading.Lock(), self._online, lambda *answer: self.answers.put_nowait(answer)
        )
        self.task = asyncio.create_task(self.attendance.work(lambda _: None))

    def _online(self, up: bool, _text: str) -> None:
        if up:
            self.up.set()

    async def answer(self) -> tuple[str, bool, str]:
        return await asyncio.wait_for(self.answers.get(), LONG)


def accompany(work: Callable[[Accompanied], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        one = Accompanied()
        try:
            await asyncio.wait_for(one.up.wait(), LONG)
            return await work(one)
        finally:
            one.task.cancel()
            await asyncio.gather(one.task, return_exceptions=True)

    return asyncio.run(whole())


def fetching(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[Any]]) -> None:
    """Do this instead of fetching files."""

    class Instead:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        async def work(self, _far: Any) -> Any:
            return await work()

    monkeypatch.setattr(module, "Fetch", Instead)


def test_commands_wait_for_no_file_and_one_that_is_refused_ends_nothing(run, monkeypatch):
    fetched = asyncio.Event()

    async def large() -> None:
        fetched.set()
        await asyncio.sleep(3600)

    fetching(monkeypatch, large)

    async def commanding(one: Accompanied) -> list[tuple[str, bool]]:
        await asyncio.wait_for(fetched.wait(), LONG)
        told = []
        for command in ("dance", "stop"):
            one.attendance.send(command)
            told.append((await one.answer())[:2])
        return told

    assert accompany(commanding) == [("dance", False), ("stop", True)]
    wait_until(lambda: read_status(run).state == "stopped")


def test_a_command_on_its_way_still_arrives_after_the_run_was_left(run, monkeypatch):
    fetching(monkeypatch, lambda: asyncio.sleep(3600))

    async def leaving(one: Accompanied) -> tuple[str, bool]:
        one.attendance.send("stop")
        asyncio.get_running_loop().call_soon(one.task.cancel)
        return (await one.answer())[:2]

    assert accompany(leaving) == ("stop", True)
    wait_until(lambda: read_status(run).state == "stopped")


def test_a_command_that_finds_no_connection_is_reported(run, server, monkeypatch):
    fetching(monkeypatch, lambda: asyncio.sleep(3600))

    async def cut(one: Accompanied) -> tuple[str, bool]:
        await asyncio.to_thread(server.stop)
        one.attendance.send("stop")
        one.task.cancel()
        return (await one.answer())[:2]

    assert accompany(cut) == ("stop", False)
    assert run.trainer() is not None


def test_an_end_is_told_although_the_computer_is_gone_right_after_it(run, server, monkeypatch):
    accompanied: list[Accompanied] = []

    async def gone() -> None:
        while not accompanied[0].attendance._ended:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(server.stop)
        raise Lost("the connection ended")

    fetching(monkeypatch, gone)

    async def ending(one: Accompanied) -> str:
        accompanied.append(one)
        one.attendance.send("stop")
        return await asyncio.wait_for(asyncio.shield(one.task), LONG)

    assert accompany(ending) == "stopped"
