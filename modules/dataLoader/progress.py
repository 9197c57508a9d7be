"""Progress of long work, and its cancellation."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Progress = Callable[[str, int, int], bool | None]
"""Called with (name of the work, done, total); returning ``False`` cancels."""

T = TypeVar("T")
R = TypeVar("R")


class LoadingCancelled(Exception):
    """The progress callback cancelled the work. Everything finished so far is kept."""


def report(progress: Progress | None, what: str, done: int, total: int) -> None:
    """Call ``progress``, and raise ``LoadingCancelled`` if it cancels."""
    if progress is not None and progress(what, done, total) is False:
        raise LoadingCancelled(what)


def reported(results: Iterable[R], progress: Progress | None, what: str, total: int) -> Iterator[R]:
    """Pass results on, and report their number every now and then and at the end."""
    for done, result in enumerate(results, 1):
        yield result
        if done % 64 == 0 or done == total:
            report(progress, what, done, total)


def in_threads(
    function: Callable[[T], R],
    values: Iterable[T],
    threads: int,
    ahead: int | None = None,
    together: int = 1,
) -> Iterator[R]:
    """``map`` in threads, in the order of ``values``, with at most about ``ahead`` pending results; 0 threads
    runs in place.

    Args:
        together: number of values per thread call. Passing one takes longer than inspecting a file, but a
            started call is finished even if the work is cancelled.
    """
    if threads < 1:
        yield from map(function, values)
        return
    limit = max(1, (ahead or 4 * threads * together) // together)
    waiting: collections.deque[Future[list[R]]] = collections.deque()

    rest = iter(values)
    with ThreadPoolExecutor(threads, thread_name_prefix="data") as pool:
        try:
            while some := list(islice(rest, together)):
                waiting.append(pool.submit(_each, function, some))
                if len(waiting) >= limit:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _each(function: Callable[[T], R], values: Sequence[T]) -> list[R]:
    return [function(one) for one in values]
