"""Progress of long work, and cancelling it."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Progress = Callable[[str, int, int], bool | None]
"""Called with (what is being done, done, of how many); returning ``False`` cancels."""

T = TypeVar("T")
R = TypeVar("R")


class LoadingCancelled(Exception):
    """The progress callback cancelled the work. Everything finished so far is kept."""


def report(progress: Progress | None, what: str, done: int, total: int) -> None:
    """Call ``progress``; raises ``LoadingCancelled`` if it cancels."""
    if progress is not None and progress(what, done, total) is False:
        raise LoadingCancelled(what)


def in_threads(
    function: Callable[[T], R], values: Iterable[T], threads: int, ahead: int | None = None
) -> Iterator[R]:
    """``map`` in the order of ``values``, at most ``ahead`` results waiting; 0 threads works in place."""
    if threads < 1:
        yield from map(function, values)
        return
    limit = ahead or 4 * threads
    waiting: collections.deque[Future[R]] = collections.deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="data") as pool:
        try:
            for value in values:
                waiting.append(pool.submit(function, value))
                if len(waiting) >= limit:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
