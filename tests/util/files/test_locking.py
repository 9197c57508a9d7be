"""Locks on file systems that have none."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from modules.remote.there.Starts import Starts
from modules.remote.there.Store import Store
from modules.util.errors import UserError

fcntl = pytest.importorskip("fcntl")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_files_cannot_be_locked_nobody_waits_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match="door cannot be locked"):
        Starts(tmp_path).announce()
    with pytest.raises(UserError, match="cannot be locked .*[\\s\\S]*a disk of this computer"):
        Store(tmp_path).take_large("0" * 64, 1, lambda size: b"", lambda offset: None)
