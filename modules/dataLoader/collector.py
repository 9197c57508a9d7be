"""Making many objects that live: the search for cycles among them finds none and takes a tenth of the time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_search_for_cycles() -> Iterator[None]:
    """Inside the block Python frees only what nothing refers to any more; afterwards it searches as before."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
