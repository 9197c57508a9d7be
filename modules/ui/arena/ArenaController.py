"""The arena of a project for a window. Votes run on a worker thread; the window gets snapshots to draw."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.arena.Arena import Arena, Ballot, Voted
from modules.project.judging import judgements_of
from modules.project.Project import Project
from modules.project.proving import adapters_between, open_arena
from modules.ui.widgets.SerialWorker import Failed, SerialWorker


@dataclass(frozen=True)
class ArenaShot:
    """State of the arena at one moment.

    Args:
        ballot: the open question; ``None`` at the end.
        votes, left: votes given, and questions that can still be asked.
        standing: the current standing, without names.
    """

    ballot: Ballot | None
    votes: int
    left: int
    standing: str


@dataclass(frozen=True)
class ArenaResult:
    """Result of the votes, with names.

    Args:
        told: as returned by ``Tally.to_dict``.
        voted: the votes.
        because: why the votes ended (``decided``, ``votes`` or ``images``); empty while they are open.
        automatic: verdicts of automatic judges on the same contestants, as sentences.
    """

    told: dict[str, Any]
    voted: list[Voted]
    because: str
    automatic: tuple[str, ...]


class ArenaController:
    """Controls an arena. Everything that touches the votes runs on ``worker``.

    Args:
        between, count: as for ``taste.py compare``.
        changed: called on the Tk thread with every new snapshot.
    """

    def __init__(
        self,
        folder: Path,
        between: str,
        count: int,
        worker: SerialWorker,
        changed: Callable[[ArenaShot], None],
        failed: Failed,
    ) -> None:
        self._folder, self._between, self._count = folder, between, count
        self._worker, self._changed, self._failed = worker, changed, failed
        self._open = ExitStack()
        self._arena: Arena | None = None
        self.waiting = 0
        """Number of snapshots still to come. While it is above 0, the screen is out of date."""

    def start(self) -> None:
        """Open the votes."""

        def work() -> None:
            project = Project(self._folder)
            adapters = adapters_between(project, self._between)
            self._arena = self._open.enter_context(
                open_arena(project, adapters, lambda text: None, count=self._count)
            )

        self._do(work)

    def _do(self, work: Callable[[], None]) -> None:
        self.waiting += 1

        def run() -> ArenaShot:
            work()
            return self._shot()

        def done(shot: ArenaShot) -> None:
            self.waiting -= 1
            self._changed(shot)

        def failed(error: Exception) -> None:
            self.waiting -= 1
            self._failed(error)

        self._worker.submit(run, done, failed)

    def _opened(self) -> Arena:
        if self._arena is None:
            raise RuntimeError("the arena is not open")
        return self._arena

    def _shot(self) -> ArenaShot:
        arena = self._opened()
        return ArenaShot(arena.ballot, arena.tally.votes, arena.left, arena.tally.blind_sentence())

    def answer(self, side: int | None, skipped: bool = False) -> None:
        """As for ``Arena``."""
        self._do(lambda: self._opened().answer(side, skipped))

    def undo(self) -> None:
        """Undo the last vote."""
        self._do(lambda: self._opened().undo())

    def result(self, done: Callable[[ArenaResult], None]) -> None:
        """Pass the result, names included, to ``done``."""

        def work() -> ArenaResult:
            arena = self._opened()
            ending = arena.ending
            because = "" if ending is None else ending.value
            project = Project(self._folder)
            judged = judgements_of(project, adapters_between(project, self._between))
            said = tuple(sentence for one in judged for sentence in one["sentences"])
            return ArenaResult(arena.tally.to_dict(), arena.voted(), because, said)

        self._worker.submit(work, done, self._failed)

    def close(self, done: Callable[[], None]) -> None:
        """Close the votes, then call ``done`` on the Tk thread."""
        self._worker.submit(self._open.close, lambda _result: done(), self._failed)
