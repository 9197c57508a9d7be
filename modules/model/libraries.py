"""Leave out what libraries load although nothing here uses it."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

BITSANDBYTES = "bitsandbytes"
"""diffusers and peft load it for layers of their own, together with torch's compiler. That takes one to two seconds of
every start of a trainer. Nothing here needs those layers: weights that it quantised before are refused, and our own
layers (``modules/model/packed.py``) import it themselves."""
_lock = threading.RLock()


@contextmanager
def unseen(package: str) -> Iterator[None]:
    """Make a package look as if it was not installed, inside the block, which one thread at a time runs. A package that
    is loaded already stays, because leaving it out would save nothing.
    """
    with _lock:
        if package in sys.modules:
            yield
            return
        sys.modules[package] = None  # type: ignore[assignment]
        try:
            yield
        finally:
            # what the block itself put there stays
            if package in sys.modules and sys.modules[package] is None:
                del sys.modules[package]


@cache
def prepare_diffusers() -> None:
    """Import diffusers without what is not used. Call this before importing anything of it."""
    with unseen(BITSANDBYTES):
        importlib.import_module("diffusers.utils.import_utils")


@cache
def prepare_denoisers() -> None:
    """Like ``prepare_diffusers``. Also import what its denoisers load: peft."""
    prepare_diffusers()
    with unseen(BITSANDBYTES):
        importlib.import_module("diffusers.hooks")
