"""Which tests are taken where all of them take too long: the cases of the usual run, and shares of the slow tests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


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


def share_of(values: Sequence[T], share: str) -> list[T]:
    """Every N-th value, beginning with the K-th, for the share ``K/N``: neighbours, which take similar times, are in
    different shares.

    Raises:
        pytest.UsageError: the share is not K/N with K from 1 to N.
    """
    named = re.fullmatch(r"([1-9]\d{0,3})/([1-9]\d{0,3})", share)
    number, count = map(int, named.groups()) if named else (1, 0)
    if number > count:
        raise pytest.UsageError(f"--share: {share!r} is not K/N with K from 1 to N, such as 3/20")
    return list(values[number - 1 :: count])
