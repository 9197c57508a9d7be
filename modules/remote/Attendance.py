"""Accompanies a run on another computer: follows it, brings its samples and log, passes commands on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from modules.remote.again import persistently
from modules.remote.Connection import Ask, Lost, Unreachable
from modules.remote.Far import Far, far_side
from modules.remote.fetching import Fetch
from modules.remote.Following import Following
from modules.remote.records import Record
from modules.util.errors import UserError

FETCH_SECONDS = 10.0
"""Seconds between two looks for new samples and output."""
SMALL = ("samples", "tensorboard", "log.txt")
"""Files that are fetched without being asked for; saved models and backups are large."""
SEND_SECONDS = 10.0
"""Time in which commands may still arrive after a connection is no longer needed."""
NOT_CONFIRMED = "the command was not confirmed, because the connection ended"
NEW_FILES = ("sample", "run_finished")
Online = Callable[[bool, str], None]
Answered = Callable[[str, bool, str], None]


class Attendance:
    """Accompanies one run until it has ended. Everything but ``send`` happens in the loop of ``work``.

    Args:
        fetching: held while files are fetched, so that nobody else fetches the same ones.
        online: told whether there is a connection, and what happened to it.
        answered: told the outcome of a command: its kind, whether it was accepted, and a text.
        patient: whether to try again even if the first connection fails.
    """

    def __init__(
        self,
        record: Record,
        fetching: threading.Lock,
        online: Online,
        answered: Answered,
        patient: bool = False,
    ) -> None:
        self.record, self._patient = record, patient
        self._fetching, self._online, self._answered = fetching, online, answered
        self._loop: asyncio.AbstractEventLoop | None = None
        self._commands: asyncio.Queue[str] = asyncio.Queue()
        self._new_files = asyncio.Event()
        self._connected = asyncio.Event()
        self._ended = False
        self._refused = ""

    def send(self, command: str) -> None:
        """Pass a command on as soon as possible. May be called from any thread. ``answered`` is told the
        outcome in any case, even if ``work`` is cancelled.

        Raises:
            UserError: there is no connection yet.
        """
        loop = self._loop
        if loop is None or loop.is_closed():
            raise UserError(
                f"{self.record.remote.address()} is not connected", hint="connect to it again on the Run page"
            )
        loop.call_soon_threadsafe(self._commands.put_nowait, command)

    async def work(self, ask: Ask) -> str:
        """Accompany the run. Returns its final state.

        Raises:
            UserError: the first connection fails and it is not patient, or the other computer refuses.
        """
        self._loop = asyncio.get_running_loop()
        follower = Following(self.record, self._heard, self._lost)

        async def follow(far: Far) -> str:
            self._online(True, "")
            self._connected.set()
            passing = asyncio.create_task(self._pass_on(far))
            try:
                return await follower.work(far)
            finally:
                await self._settle(passing)

        following = asyncio.create_task(
            persistently(self.record.remote, ask, self._lost, follow, patient=self._patient)
        )
        connected = asyncio.create_task(self._connected.wait())
        tasks: list[asyncio.Task[Any]] = [following, connected]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not self._connected.is_set():
                return await following
            errands = asyncio.create_task(self._run_errands(ask))
            tasks.append(errands)
            await asyncio.wait([following, errands], return_when=asyncio.FIRST_COMPLETED)
            if errands.done():
                await errands  # errands end before the run only through an error
            state = await following
            self._ended = True
            self._look()
            await errands
            return state
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            while not self._commands.empty():  # given while there was no connection
                self._not_confirmed(self._commands.get_nowait())

    def _lost(self, text: str) -> None:
        self._online(False, text)

    def _heard(self, event: dict[str, Any]) -> None:
        if event.get("kind") in NEW_FILES:
            self._look()

    def _look(self) -> None:
        self._new_files.set()

    async def _run_errands(self, ask: Ask) -> None:
        """The connection that follows the run tells how things are; this one tries again until it is there."""
        while True:
            try:
                async with far_side(self.record.remote, ask) as far:
                    await self._errands(far)
                return
            except (Lost, Unreachable):
                if self._ended:  # what was not fetched can be fetched later
                    return
            await asyncio.sleep(FETCH_SECONDS)

    async def _errands(self, far: Far) -> None:
        """Look for new files again and again, until the run has ended."""
        while True:
            ended = self._ended
            self._new_files.clear()
            await self._bring(far)
            if ended:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._new_files.wait(), FETCH_SECONDS)

    async def _pass_on(self, far: Far) -> None:
        """Pass commands on over the connection that follows the run, so that they wait for no file."""
        while True:
            command = await self._commands.get()
            try:
                async with far.second() as own:
                    done = await own.ask(
                        dict[str, Any], "control", run=self.record.run, command=command, wait=False
                    )
                self._answered(command, done.get("status") == 0, str(done.get("text")))
            except UserError as error:
                self._answered(command, False, error.message)
            except asyncio.CancelledError:
                self._not_confirmed(command)
                raise
            finally:
                self._commands.task_done()

    async def _settle(self, passing: asyncio.Task[None]) -> None:
        """Give the commands on their way some time, then end the task that passes them on."""
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._commands.join(), SEND_SECONDS)
        finally:
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)

    def _not_confirmed(self, command: str) -> None:
        self._answered(command, False, NOT_CONFIRMED)

    async def _bring(self, far: Far) -> None:
        """Fetch small files. A reason why that is impossible is told once, and again when it changes."""
        if not self._fetching.acquire(blocking=False):
            return
        try:
            report = await Fetch(self.record, False, lambda _line: None, only=SMALL, quick=True).work(far)
            refused, self._refused = self._refused, ""
            if report.fetched or refused:
                self._online(True, "")
        except (Lost, Unreachable):
            raise
        except UserError as error:
            if error.message != self._refused:
                self._refused = error.message
                self._online(True, error.message)
        finally:
            self._fetching.release()
