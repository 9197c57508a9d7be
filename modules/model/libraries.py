"""What libraries load although nothing here uses it, and how it is left out."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

BITSANDBYTES = "bitsandbytes"
"""diffusers and peft load it for layers of their own, and it brings torch's compiler along: two seconds of every start
of a trainer. Weights that it rounded before are refused, and those that are rounded here are layers of our own
(``modules/model/packed.py``), which import it themselves."""


@contextmanager
def unseen(package: str) -> Iterator[None]:
    """Inside the block, whoever asks whether a package is installed is told that it is not. One that is loaded already
    stays: leaving it out would save nothing.
    """
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


@cache
def prepare_diffusers() -> None:
    """Import diffusers without what is not used; to be called before anything of it is imported."""
    with unseen(BITSANDBYTES):
        importlib.import_module("diffusers.utils.import_utils")


@cache
def prepare_denoisers() -> None:
    """As ``prepare_diffusers``, and import what its denoisers bring along: peft."""
    prepare_diffusers()
    with unseen(BITSANDBYTES):
        importlib.import_module("diffusers.hooks")
