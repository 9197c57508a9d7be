"""Every change of files has a number: recording them, and failing or dying at a given one."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from modules.util.files.OpenFolder import observe
from tests.source_tree import ROOT

Change = tuple[str, str]


@dataclass
class Changes:
    """The changes that were made, as (kind, path), in order; numbers count from 1."""

    made: list[Change] = field(default_factory=list)
    begun: int = 0

    def of(self, kind: str) -> list[str]:
        return [path for found, path in self.made if found == kind]


@contextmanager
def recorded() -> Iterator[Changes]:
    """Note the changes of a block."""
    changes = Changes()

    def note(kind: str, path: str, done: bool) -> None:
        if done:
            changes.made.append((kind, path))
        else:
            changes.begun += 1

    observe(note)
    try:
        yield changes
    finally:
        observe(None)


@contextmanager
def full_disk(*kinds: str, after: int = 0) -> Iterator[Changes]:
    """A disk without room: changes of these kinds (those that need room, by default) fail after the first few.

    Removing and renaming need no room.
    """
    wanted = kinds or ("create", "write", "fsync", "folder", "link", "commit")
    changes = Changes()

    def fail(kind: str, path: str, done: bool) -> None:
        if done or kind not in wanted:
            return
        changes.begun += 1
        if changes.begun > after:
            raise OSError(errno.ENOSPC, "No space left on device", path)

    observe(fail)
    try:
        yield changes
    finally:
        observe(None)


def killed_at(number: int, done: bool, work: Callable[[], object]) -> bool:
    """Do something in a child process that is ended by SIGKILL before or after its change ``number``.

    Returns:
        Whether it came so far; otherwise it has done all of it.
    """
    child = os.fork()
    if not child:
        try:
            die_at(number, done)
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - shown, and told by the exit code
            traceback.print_exc()
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), f"it ended with {status}"
    return status == -signal.SIGKILL


def die_at(number: int, done: bool) -> None:
    """End this process by SIGKILL before or after change ``number``."""
    count = 0

    def die(kind: str, path: str, finished: bool) -> None:
        nonlocal count
        count += finished is done
        if count == number and finished is done:
            os.kill(os.getpid(), signal.SIGKILL)

    observe(die)


def in_small_process(work: Callable[[Path], object], folder: Path) -> None:
    """Call a function of a module in a new process. Use it for work that is killed at many moments: a process that
    has loaded torch takes up to a quarter of a second for each fork, and one that has not takes a millisecond.

    Raises:
        AssertionError: it failed; with what it printed.
    """
    call = f"from {work.__module__} import {work.__name__} as work; work(Path(sys.argv[1]))"
    command = [sys.executable, "-c", f"import sys; from pathlib import Path; {call}", str(folder)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
