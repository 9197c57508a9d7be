"""For contracts that load the tiny model of a family in each of their tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def from_memory() -> Iterator[None]:
    """Models of ``tests/tiny`` are read from their folders once per process, then copied."""
    from tests.tiny.loaded_once import loaded_once

    with loaded_once():
        yield
