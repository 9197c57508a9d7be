"""Ctrl+C, termination and a closed terminal as a request to stop, handled between optimizer steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


def _stopping() -> list[signal.Signals]:
    made = [signal.SIGINT, signal.SIGTERM]
    hangup: signal.Signals | None = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        made.append(hangup)
    return made


class StopSignals:
    """While active, SIGINT, SIGTERM and SIGHUP are recorded instead of ending the process.

    A second SIGINT raises ``KeyboardInterrupt``, for those who do not want to wait. Outside the main thread,
    signals cannot be caught and nothing changes. SIGHUP stays ignored if it already is (``nohup``).
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in _stopping():
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
