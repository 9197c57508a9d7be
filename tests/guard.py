"""Files of a person next to a case; a case that changes any of them in any way has failed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

Seen = tuple[int, int, int, int, bytes | str]


class Guard:
    """A folder of files, folders, links and a FIFO, compared at the end with how it was at the beginning.

    ``mine``, ``mine.txt``, ``mine.png``, ``steps.jsonl``, ``.keep.tmp``, ``.tastemaker-mine``, ``sub/mine``,
    ``link`` (to ``mine``), ``out`` (to itself) and ``fifo``: names, kinds, rights, bytes, times.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "sub").mkdir(parents=True)
        for name in (
            "mine",
            "mine.txt",
            "mine.png",
            "steps.jsonl",
            ".keep.tmp",
            ".tastemaker-mine",
            "sub/mine",
        ):
            (folder / name).write_text(f"a person wrote {name}\n")
        (folder / "link").symlink_to("mine")
        (folder / "out").symlink_to(".")
        os.mkfifo(folder / "fifo")
        self.before = self._look()

    def _look(self) -> dict[str, Seen]:
        found: dict[str, Seen] = {}
        for path in (self.folder, *sorted(self.folder.rglob("*"))):
            info = path.lstat()
            content: bytes | str = ""
            if stat.S_ISREG(info.st_mode):
                content = path.read_bytes()
            elif stat.S_ISLNK(info.st_mode):
                content = str(path.readlink())
            found[str(path)] = (info.st_mode, info.st_ino, info.st_nlink, info.st_mtime_ns, content)
        return found

    def check(self) -> None:
        """Raises ``AssertionError`` if anything is not as it was."""
        after = self._look()
        changed = [name for name in {*self.before, *after} if self.before.get(name) != after.get(name)]
        assert not changed, f"changed: {sorted(changed)}"

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self.check()
