"""A piece of work in steps, each acknowledged when it is on the disk; stopped at any of its changes of files.

What a start after it finds must be the state after the last acknowledged step, or after the one under way, whole: the
states are those of the same work stopped between two steps. Then the work is finished and must end as if nothing had
happened.
"""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modules.util.errors import UserError
from modules.util.files.OpenFolder import Observer, observe
from modules.util.owned_files import LIST_NAME
from tests.guard import Guard

Acknowledge = Callable[[], None]
State = Any

HANG_S = 60.0
NEEDS_ROOM = ("create", "write", "fsync", "folder", "link", "commit")
DISKS: dict[str, tuple[int, tuple[str, ...]]] = {
    "full": (errno.ENOSPC, NEEDS_ROOM),
    "read-only": (errno.EROFS, (*NEEDS_ROOM, "rename", "delete")),
    "vanished": (errno.ESTALE, (*NEEDS_ROOM, "rename", "delete")),
}
"""How a disk fails: the error, and the kinds of changes that meet with it."""


@dataclass(frozen=True)
class Subject:
    """What is stopped.

    Args:
        prepare: makes the folder as it is before; the same every time.
        work: does the steps from one on (0 is the first), and acknowledges each.
        reopen: what the next start does, before the work continues.
        state: what is in the folder, without what differs from run to run.
        steps: how many there are.
        expected: errors that a caller turns into a warning or exit 2.
    """

    prepare: Callable[[Path], object]
    work: Callable[[Path, int, Acknowledge], object]
    reopen: Callable[[Path], object]
    state: Callable[[Path], State]
    steps: int
    expected: tuple[type[Exception], ...] = (UserError,)


@dataclass
class Outcome:
    """What became of one case; empty lists are good."""

    acknowledged: int = 0
    reached: bool = True
    lost: list[str] = field(default_factory=list)
    half: list[str] = field(default_factory=list)
    rests: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    other_end: list[str] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        return [
            f"{name}: {text}"
            for name in ("lost", "half", "rests", "hangs", "tracebacks", "other_end", "guards")
            for text in getattr(self, name)
        ]


def in_child(work: Callable[[Callable[[str], None]], None]) -> tuple[int | None, list[str], str]:
    """Run in a forked process that tells lines; its exit status (``None``: it hung), the lines, and its complaint."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        status, told = 1, ""
        try:
            os.close(reader)
            work(lambda line: os.write(writer, f"{line}\n".encode()) and None)
            status = 0
        except BaseException:  # noqa: BLE001 - told to the parent, and by the status
            told = traceback.format_exc()
        finally:
            observe(None)
            os.write(writer, b"!" + repr(told).encode()[:8000] + b"\n")
            os._exit(status)
    os.close(writer)
    data, until = b"", time.monotonic() + HANG_S
    while select.select([reader], [], [], max(0.0, until - time.monotonic()))[0]:
        if not (block := os.read(reader, 65536)):
            break
        data += block
    hung = time.monotonic() >= until
    if hung:
        os.kill(child, signal.SIGKILL)
    os.close(reader)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    lines = data.decode(errors="replace").splitlines()
    complaint = next((line[1:] for line in lines if line.startswith("!")), "")
    return None if hung else status, [line for line in lines if not line.startswith("!")], complaint


class Runs:
    """A subject with its sound states, and cases of it in scratch folders."""

    def __init__(self, name: str, subject: Subject, base: Path) -> None:
        self.name, self.subject, self.base = name, subject, base / name.replace(" ", "-")
        self._start = self.base / "start"
        self._start.mkdir(parents=True)
        subject.prepare(self._start)
        self.changes = 0
        self.states = self._all_states()

    def _all_states(self) -> list[State]:
        """The state before the work, and that after each step: what a kill between two changes would leave."""
        folder, copies, done, counted = self._fresh(), self.base / "copies", 0, 0
        subject = self.subject

        def count(kind: str, path: str, finished: bool) -> None:
            nonlocal counted
            counted += finished

        def work(tell: Callable[[str], None]) -> None:
            def acknowledge() -> None:
                nonlocal done
                done += 1
                shutil.copytree(folder, copies / str(done), symlinks=True)
                tell(str(counted))

            observe(count)
            subject.work(folder, 0, acknowledge)

        status, lines, complaint = in_child(work)
        assert status == 0 and len(lines) == subject.steps, f"{self.name}: {complaint}"
        self.changes, states = int(lines[-1]), []
        for source in (self._start, *(copies / str(step + 1) for step in range(subject.steps))):
            shutil.rmtree(folder)
            # always at the same place, for names in files
            shutil.copytree(source, folder, symlinks=True)
            subject.reopen(folder)
            states.append(self._seen(folder))
        shutil.rmtree(copies)
        return states

    def _fresh(self) -> Path:
        """A copy of what there is before; always at the same place, for names in files."""
        folder = self.base / "case"
        if folder.exists():
            shutil.rmtree(folder)
        shutil.copytree(self._start, folder, symlinks=True)
        return folder

    def _seen(self, folder: Path) -> State:
        return self.subject.state(folder)

    def killed(self, number: int, done: bool) -> Outcome:
        """SIGKILL before or after change ``number``, counted from 1."""
        folder, counted = self._fresh(), 0

        def die(kind: str, path: str, finished: bool) -> None:
            nonlocal counted
            counted += finished is done
            if counted == number and finished is done:
                os.kill(os.getpid(), signal.SIGKILL)

        return self._case(folder, die, f"{self.name} kill {number}{'+' if done else '-'}")

    def failing(self, number: int, how: str) -> Outcome:
        """A disk that fails from change ``number`` on, counted from 1."""
        folder, counted = self._fresh(), 0
        code, kinds = DISKS[how]

        def fail(kind: str, path: str, finished: bool) -> None:
            nonlocal counted
            if finished or kind not in kinds:
                return
            counted += 1
            if counted >= number:
                raise OSError(code, os.strerror(code), path)

        return self._case(folder, fail, f"{self.name} {how} {number}")

    def on_small_disk(self, room: int) -> Outcome:
        """A disk of its own with this many KiB of room, until the work has ended: a tmpfs where one can be mounted,
        else a limit on the size of each file.
        """
        label = f"{self.name} {room} KiB"
        folder = self._fresh()
        size = sum(path.stat().st_size + 8192 for path in folder.rglob("*")) // 1024 + room
        if not mounted(folder, size):

            def limited(kind: str, path: str, finished: bool) -> None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (room * 1024, resource.RLIM_INFINITY))

            return self._case(folder, limited, f"{label} a file")
        try:
            shutil.copytree(self._start, folder, symlinks=True, dirs_exist_ok=True)
            return self._case(folder, None, label, after=lambda: mounted(folder, 64 << 10, "remount,"))
        finally:
            subprocess.run(["umount", str(folder)], check=True)

    def _case(
        self, folder: Path, observer: Observer | None, label: str, after: Callable[[], object] = bool
    ) -> Outcome:
        outcome = Outcome()
        guard = Guard(self.base / "person")

        def work(tell: Callable[[str], None]) -> None:
            observe(observer)
            try:
                self.subject.work(folder, 0, lambda: tell("ok"))
            except self.subject.expected as error:
                tell(f"error {type(error).__name__}")

        status, lines, complaint = in_child(work)
        after()
        outcome.acknowledged = lines.count("ok")
        outcome.reached = status == -signal.SIGKILL or any(line.startswith("error") for line in lines)
        if status is None:
            outcome.hangs.append(label)
        elif status not in (0, -signal.SIGKILL):
            outcome.tracebacks.append(f"{label}: {complaint}")
        try:
            self._judge(folder, label, outcome)
        except Exception:  # noqa: BLE001 - whatever the next start cannot cope with is a finding
            outcome.tracebacks.append(f"{label}, started again: {traceback.format_exc()}")
        try:
            guard.check()
        except AssertionError as error:
            outcome.guards.append(f"{label}: {error}")
        shutil.rmtree(guard.folder)
        return outcome

    def _judge(self, folder: Path, label: str, outcome: Outcome) -> None:
        self.subject.reopen(folder)
        found, ready = self._seen(folder), outcome.acknowledged
        fitting = [number for number, state in enumerate(self.states) if state == found]
        if not fitting:
            outcome.half.append(f"{label}: {_difference(found, self.states[ready])}")
            return
        if max(fitting) < ready:
            outcome.lost.append(f"{label}: acknowledged {ready}, found {max(fitting)}")
        outcome.rests += [f"{label}: {rest}" for rest in rests(folder)]
        self.subject.work(folder, min((n for n in fitting if n >= ready), default=max(fitting)), lambda: None)
        self.subject.reopen(folder)
        if self._seen(folder) != self.states[-1]:
            outcome.other_end.append(f"{label}: {_difference(self._seen(folder), self.states[-1])}")


def _difference(found: State, wanted: State) -> str:
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = [key for key in {*found, *wanted} if found.get(key) != wanted.get(key)]
        return f"differs in {sorted(map(str, keys))[:8]}"
    return f"{found!r:.200} instead of {wanted!r:.200}"


def mounted(folder: Path, kib: int, how: str = "") -> bool:
    """Whether a small disk could be mounted on a folder, or given another size."""
    command = ["mount", "-t", "tmpfs", "-o", f"{how}size={kib}k", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def rests(folder: Path) -> list[str]:
    """Temporary files of the program that are left in a folder; the list of a saved folder belongs to it."""
    return [
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.name.startswith((".tastemaker-", ".pair_", ".tmp-"))
        or path.suffix in (".tmp", ".swap", ".taken")
        if path.name != LIST_NAME or not _is_list_of(path)
    ]


def _is_list_of(path: Path) -> bool:
    """Whether a list names exactly the files it lies among, with their sizes."""
    listed = json.loads(path.read_text())["files"]
    found = {
        file.relative_to(path.parent).as_posix(): file.stat().st_size
        for file in path.parent.rglob("*")
        if file.is_file() and file != path
    }
    return bool(found) and found == listed


@dataclass
class Tally:
    """Figures of many cases."""

    tried: int = 0
    acknowledged: int = 0
    outcomes: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.tried += outcome.reached
        self.acknowledged += outcome.acknowledged
        self.outcomes.append(outcome)

    @property
    def faults(self) -> list[str]:
        return [fault for outcome in self.outcomes for fault in outcome.faults]

    def count(self, name: str) -> int:
        return sum(len(getattr(outcome, name)) for outcome in self.outcomes)


def drawn(runs: list[Runs], count: int, seed: int) -> Iterator[tuple[Runs, int, bool]]:
    """Cases, drawn evenly over subjects: the runs, a change, and whether after it."""
    rng = random.Random(seed)
    for index in range(count):
        one = runs[index % len(runs)]
        yield one, rng.randint(1, one.changes), rng.random() < 0.5
