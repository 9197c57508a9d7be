"""A folder in memory for the files of a test session, which leaves nothing behind and does not fill the memory."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

import psutil

from modules.runner.ProcessId import ProcessId

MEMORY = Path("/dev/shm")
ROOM, RESERVE = 8 << 30, 2 << 30
"""Bytes that must be free at the start, and at every test."""
MARKER = "made-by-tastemaker-tests.json"
_NAME = re.compile(r"tastemaker-tests-(\d+)-\w+")


def make_folder(memory: Path = MEMORY) -> Path | None:
    """A private folder of this process in memory; ``None`` where there is none, too little room, or no program can be
    started. Folders of sessions that were killed are removed first.
    """
    if not _usable(memory):
        return None
    remove_leftovers(memory)
    if room(memory) < ROOM:
        return None
    own = ProcessId.own()
    made = Path(tempfile.mkdtemp(prefix=f"tastemaker-tests-{own.pid}-", dir=memory))
    (made / MARKER).write_text(json.dumps({**own.to_dict(), "namespace": namespace()}), encoding="utf-8")
    return made


def remove_own() -> None:
    """Remove the folders of this process."""
    own = ProcessId.own()
    for folder in MEMORY.glob(f"tastemaker-tests-{own.pid}-*") if MEMORY.is_dir() else ():
        if _maker(folder) == own:
            shutil.rmtree(folder, ignore_errors=True)


def room(folder: Path) -> int:
    """Bytes that files may still take, in the folder's file system and in the memory it lies in."""
    return min(shutil.disk_usage(folder).free, psutil.virtual_memory().available)


def _usable(memory: Path) -> bool:
    if not memory.is_dir() or not os.access(memory, os.W_OK | os.X_OK):
        return False
    return not os.statvfs(memory).f_flag & os.ST_NOEXEC


def remove_leftovers(memory: Path) -> None:
    """Remove the folders of sessions that are gone: those with our name and marker, of our user."""
    for folder in memory.iterdir():
        if is_leftover(folder):
            shutil.rmtree(folder, ignore_errors=True)


def is_leftover(folder: Path) -> bool:
    """Whether a session made this folder that no longer runs."""
    maker = _maker(folder)
    return maker is not None and not maker.alive()


def namespace() -> str:
    """What tells containers apart that share the memory: each numbers its processes itself."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _maker(folder: Path) -> ProcessId | None:
    """The session that made a folder of this user, in this container; ``None`` for every other folder."""
    named = _NAME.fullmatch(folder.name)
    if named is None or not _is_ours(folder, stat.S_IFDIR) or not _is_ours(folder / MARKER, stat.S_IFREG):
        return None
    try:
        facts = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        maker = ProcessId.from_dict(facts)
        if facts.get("namespace") != namespace():
            return None
    except (OSError, ValueError, AttributeError):
        return None
    return maker if maker is not None and maker.pid == int(named[1]) else None


def _is_ours(path: Path, kind: int) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_IFMT(found.st_mode) == kind and found.st_uid == os.getuid()
