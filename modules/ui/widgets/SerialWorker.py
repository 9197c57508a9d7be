"""One thread for all disk operations, in the order requested."""

from __future__ import annotations

import queue
import threading
import tkinter as tk
from collections.abc import Callable
from functools import partial
from typing import Any

from modules.ui.widgets.tk_support import Timer

POLL_MS = 3

Done = Callable[[Any], None]
Failed = Callable[[Exception], None]


class SerialWorker:
    """Runs calls one after another off the Tk thread and delivers each result on it.

    Results are polled every ``POLL_MS`` milliseconds while a call is running, and not at all otherwise,
    because a key press must not wait for a slow timer.

    Args:
        widget: a widget that lives as long as the worker.
        failed: called on the Tk thread with the exception of a call that has no handler of its own.
    """

    def __init__(self, widget: tk.Misc, failed: Failed) -> None:
        self._failed = failed
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Done, Failed] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._open_calls = 0
        self._closed = False
        self._timer = Timer(widget, POLL_MS, self._poll)
        self._thread = threading.Thread(target=self._work, daemon=True, name="pair-tool-store")
        self._thread.start()

    @property
    def busy(self) -> bool:
        """True if a result is pending."""
        return self._open_calls > 0

    def submit(self, work: Callable[[], Any], done: Done, failed: Failed | None = None) -> None:
        """Run ``work`` after the earlier calls, then call ``done`` on the Tk thread with its result.

        Args:
            failed: called with the exception of ``work``, instead of the worker's own handler.
        """
        if self._closed:
            return
        self._open_calls += 1
        self._calls.put((work, done, failed or self._failed))
        self._timer.start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            work, done, failed = call
            try:
                outcome = partial(done, work())
            except Exception as error:  # noqa: BLE001 - handed over whole, to be shown
                outcome = partial(failed, error)
            self._outcomes.put(outcome)

    def _poll(self) -> None:
        try:
            while not self._closed:
                outcome = self._outcomes.get_nowait()
                self._open_calls -= 1
                outcome()
        except queue.Empty:
            pass
        finally:
            if self._open_calls and not self._closed:
                self._timer.start()

    def close(self) -> None:
        """Finish pending calls, drop their results, and end the thread."""
        self._closed = True
        self._timer.stop()
        self._calls.put(None)
        self._thread.join(timeout=30)
