"""Work with another computer in a thread of its own, which can be cancelled. No Tk here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from modules.remote.Connection import Ask

T = TypeVar("T")
Post = Callable[[Callable[[], object]], None]


@dataclass(frozen=True)
class Ends(Generic[T]):
    """The callbacks that follow a job. Exactly one of them is called, on the Tk thread.

    Args:
        done: with the result.
        failed: with the error.
        cancelled: without either.
    """

    done: Callable[[T], object]
    failed: Callable[[Exception], object]
    cancelled: Callable[[], object]


class FarJob(Generic[T]):
    """One piece of work.

    Args:
        work: makes the coroutine; it gets a function that asks for passwords.
        ask: asks the person, from any thread. A question left unanswered cancels the job.
        post: runs a function on the Tk thread.
        ends: what follows.
        may_cancel: whether the job can still be cancelled; asked in its thread.
    """

    def __init__(
        self,
        work: Callable[[Ask], Coroutine[Any, Any, T]],
        ask: Ask,
        post: Post,
        ends: Ends[T],
        may_cancel: Callable[[], bool] = lambda: True,
    ) -> None:
        self._work, self._ask, self._post, self._ends = work, ask, post, ends
        self._may_cancel = may_cancel
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[T] | None = None
        self._cancelled = threading.Event()
        self._unanswered = False
        self.thread = threading.Thread(target=self._run, daemon=True, name="far-job")
        self.thread.start()

    def _run(self) -> None:
        ends = self._ends
        try:
            result = asyncio.run(self._begin())
        except asyncio.CancelledError:
            self._post(ends.cancelled)
        except Exception as error:  # noqa: BLE001 - handed over whole, to be shown
            caught = error
            self._post(ends.cancelled if self._unanswered else lambda: ends.failed(caught))
        else:
            self._post(lambda: ends.done(result))

    async def _begin(self) -> T:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._cancelled.is_set():
            raise asyncio.CancelledError
        return await self._work(self._question)

    def _question(self, text: str) -> str | None:
        # whoever closes one question does not want to see the next way of asking it
        answer = None if self._unanswered or self._cancelled.is_set() else self._ask(text)
        self._unanswered = answer is None
        return answer

    def cancel(self) -> None:
        """Ask the job to end soon."""
        self._cancelled.set()
        if self._loop is not None:
            with suppress(RuntimeError):  # its loop has just closed, so the job has ended
                self._loop.call_soon_threadsafe(self._cancel_now)

    def _cancel_now(self) -> None:
        if self._task is not None and self._may_cancel():
            self._task.cancel()
