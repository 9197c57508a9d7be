"""Hashes computed in another thread, which ends soon after the task that waits for it was cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from modules.remote.there.digest import digest_of

T = TypeVar("T")


async def stoppable(work: Callable[[threading.Event], T]) -> T:
    """Run ``work`` in another thread. If the waiting task is cancelled, the event is set, and ``work`` should raise.

    The end of an event loop waits for its threads, so that a cancelled task would otherwise end only with them.
    """
    stop = threading.Event()
    try:
        return await asyncio.to_thread(work, stop)
    finally:
        stop.set()


async def digest(path: Path, size: int | None = None) -> str:
    """``digest_of`` in another thread."""
    return await stoppable(lambda stop: digest_of(path, size, stop))
