"""Which cases of a test the usual run takes, where all of them take too long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def usual(values: Iterable[Any], *taken: Any) -> list[Any]:
    """All values of a test, for ``pytest.mark.parametrize``; those that are not ``taken`` are marked slow.

    Raises:
        ValueError: one of ``taken`` is not a value.
    """
    known = list(values)
    if unknown := [name for name in taken if name not in known]:
        raise ValueError(f"no case of this test: {unknown}")
    return [
        value
        if value in taken
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for value in known
    ]
