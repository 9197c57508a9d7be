"""Which tests are taken where all of them take too long: the cases of the usual run, shares of the slow tests, and
those of folders that have changed.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
CONTRACTS = {"adapter", "model", "modelSetup", "objective", "rollout", "spec", "trainer", "weights"}
"""Rooms whose changes ``tests/contracts`` is about, besides the folder of the same name."""


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


def changed_since(commit: str, root: Path) -> list[str]:
    """Files that differ from those of a commit, and new ones that git does not ignore, relative to ``root``.

    Raises:
        pytest.UsageError: git does not know the commit.
    """

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise pytest.UsageError(
                f"--since: git does not know the commit {commit!r}: {done.stderr.strip()}"
            )
        return [name for name in done.stdout.split("\0") if name]

    return [
        *git("diff", "--name-only", "-z", "--relative", "--end-of-options", commit, "--"),
        *git("ls-files", "--others", "--exclude-standard", "-z"),
    ]


def folders_of(changed: Iterable[str]) -> set[str]:
    """Names of the folders of ``tests`` that mirror those of changed files."""
    found: set[str] = set()
    for name in changed:
        parts = PurePosixPath(name).parts
        if parts[0] in ("modules", "tests") and len(parts) > 2:
            found |= {parts[1]} | ({"contracts"} if parts[1] in CONTRACTS else set())
        elif parts[0] == "scripts":
            found |= {"demo" if parts[1] == "demo" else "scripts"}
    return found
