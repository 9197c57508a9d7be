"""The folder of tests in memory: what is removed at the next start, and when it is not used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from modules.runner.ProcessId import ProcessId
from tests import conftest, memory_folder
from tests.memory_folder import MARKER, make_folder, namespace, remove_leftovers
from tests.source_tree import ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no folder in memory")

PROGRAM = (
    "import os, sys; from pathlib import Path; from tests import memory_folder\n"
    "memory_folder.ROOM = 0\n"
    "made = memory_folder.make_folder(Path(sys.argv[1])); (made / 'file').touch()\n"
    "print(made, flush=True); os.kill(os.getpid(), 9)"
)


@pytest.fixture(autouse=True)
def enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_folder, "ROOM", 0)


@pytest.mark.child
def test_what_a_killed_session_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    left = Path(made.stdout.strip())
    assert left.parent == tmp_path and (left / "file").exists(), made.stderr
    own = make_folder(tmp_path)
    assert own is not None and own.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == [own]


def test_what_lives_or_is_not_ours_stays(tmp_path: Path) -> None:
    gone = {"pid": 1 << 22 | 1, "started": "never", "namespace": namespace()}

    def folder(name: str, marker: object) -> None:
        (tmp_path / name).mkdir()
        if marker is not None:
            (tmp_path / name / MARKER).write_text(json.dumps(marker), encoding="utf-8")

    dead = gone["pid"]
    folder(f"tastemaker-tests-{os.getpid()}-live", {**ProcessId.own().to_dict(), "namespace": namespace()})
    folder(f"tastemaker-tests-{dead}-container", {**gone, "namespace": "pid:[1]"})
    folder(f"tastemaker-tests-{dead}-unmarked", None)
    folder(f"tastemaker-tests-{dead}-list", [1])
    folder(f"tastemaker-tests-{os.getpid()}-other", gone)
    folder("somebody-else", gone)
    folder("target", gone)
    (tmp_path / f"tastemaker-tests-{dead}-link").symlink_to(tmp_path / "target")
    before = sorted(tmp_path.rglob("*"))
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    folder(f"tastemaker-tests-{dead}-dead", gone)
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = tmp_path / f"tastemaker-tests-{1 << 22}-dead"
    name.mkdir()
    (name / MARKER).write_text(
        json.dumps({"pid": 1 << 22, "started": "never", "namespace": namespace()}), encoding="utf-8"
    )
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    remove_leftovers(tmp_path)
    assert name.exists()
    monkeypatch.undo()
    remove_leftovers(tmp_path)
    assert not name.exists()


def test_memory_where_no_program_can_be_started_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    assert make_folder(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_folder, "ROOM", 1 << 60)
    assert make_folder(tmp_path) is None


def test_tests_end_before_their_files_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = SimpleNamespace(shouldstop=False)
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(tmp_path))
    conftest.keep_reserve(session)  # type: ignore[arg-type]
    assert session.shouldstop is False
    (tmp_path / MARKER).touch()
    conftest.keep_reserve(session)  # type: ignore[arg-type]
    assert session.shouldstop is False
    monkeypatch.setattr(memory_folder, "RESERVE", 1 << 60)
    conftest.keep_reserve(session)  # type: ignore[arg-type]
    assert "PYTEST_DEBUG_TEMPROOT" in session.shouldstop
