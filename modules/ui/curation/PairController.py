"""A picking session for a window: verbs run on a worker thread, the window gets snapshots to draw."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from modules.curation.exchange.public_formats import export_datasets_folder, export_jsonl_folder
from modules.curation.intake.duplicates import file_dhash
from modules.curation.intake.folders import check_folders
from modules.curation.intake.groups import ScanOptions
from modules.curation.intake.scan import ScanFault
from modules.curation.session import CurationSession, GroupState, ImageGroup, Phase, SessionSettings
from modules.curation.statistics import AnswerStatistics, answer_statistics
from modules.curation.store import CurationStore
from modules.ui.curation.GroupFeed import FeedStatus, GroupFeed
from modules.ui.widgets.SerialWorker import Failed, SerialWorker
from modules.util.dpo_curation_util import Pair, finalize_export, unconditional_pairs
from modules.util.image_metadata.limits import Unusable

PAUSE_SECONDS = 30.0
"""A longer wait between two answers is a break and does not count as work."""
LOOK_AHEAD = 2


@dataclass(frozen=True)
class Counts:
    """Of the whole output folder."""

    seen: int = 0
    skipped: int = 0
    paired: int = 0


@dataclass(frozen=True)
class Snapshot:
    """Everything a window shows of a session at one moment.

    Args:
        group, state: ``None`` while searching and when no group is left.
        pairs: what the open group has given so far.
        finished: groups done.
        seconds_left: ``None`` until there is something to judge by.
        coming: images worth decoding ahead.
        note: one sentence about what just happened, if it needs one.
    """

    group: ImageGroup | None
    state: GroupState | None
    counts: Counts
    feed: FeedStatus
    finished: int
    pairs: tuple[Pair, ...] = ()
    seconds_left: float | None = None
    coming: tuple[Path, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class PickingOptions:
    """What the start page asks for."""

    source: Path
    output: Path
    session: SessionSettings = field(default_factory=SessionSettings)
    scan: ScanOptions = field(default_factory=ScanOptions)
    ask_to_continue: bool = True


class LookDistance:
    """How different two images look: bits that differ in their hashes; all 64 if one cannot be decoded.

    Pairing compares every good image with every bad one, so each is decoded once and remembered.
    """

    def __init__(self) -> None:
        self._hashes: dict[Path, int | None] = {}

    def __call__(self, first: Path, second: Path) -> float:
        hashes = [self._hash(path) for path in (first, second)]
        if hashes[0] is None or hashes[1] is None:
            return 64.0
        return float((hashes[0] ^ hashes[1]).bit_count())

    def _hash(self, path: Path) -> int | None:
        if path not in self._hashes:
            try:
                self._hashes[path] = file_dhash(path)
            except Unusable:
                self._hashes[path] = None
        return self._hashes[path]


class PairController:
    """The session behind the choosing page.

    Args:
        worker: everything that touches the store runs on it.
        changed: gets every new snapshot, on the Tk thread.
        failed: gets what went wrong, on the Tk thread; the session is as before.
        post: runs a call on the Tk thread, from any thread.
    """

    def __init__(
        self,
        options: PickingOptions,
        worker: SerialWorker,
        changed: Callable[[Snapshot], None],
        failed: Failed,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self.options = options
        self._worker = worker
        self._changed = changed
        self._failed = failed
        self._post = post
        self.waiting = 0
        self._store: CurationStore | None = None
        self._session: CurationSession | None = None
        self._feed: GroupFeed | None = None
        self._group: ImageGroup | None = None
        self._finished: set[str] = set()
        self._seen = self._skipped = 0
        self._worked = 0.0
        self._done_here = 0
        self._last = time.monotonic()
        self._look_posted = False
        self._closed = False

    # --- opening and closing ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the folder and begin to search."""
        self._submit(self._open)

    def _submit(self, work: Callable[[], str], verb: bool = True) -> None:
        """``waiting`` counts the verbs whose snapshot is still to come: what is on the screen is then old."""
        self.waiting += verb

        def run() -> Snapshot | None:
            return None if self._closed else self._snapshot(work())

        def done(shot: Snapshot | None) -> None:
            self.waiting -= verb
            if shot is not None:
                self._changed(shot)

        def failed(error: Exception) -> None:
            self.waiting -= verb
            self._failed(error)

        self._worker.submit(run, done, failed)

    def _open(self) -> str:
        options = self.options
        check_folders(options.source, options.output)
        self._store = CurationStore(options.output)
        self._session = CurationSession(self._store, options.session, LookDistance())
        self._finished = self._session.finished_groups()
        self._recount()
        self._feed = GroupFeed(
            options.source, options.output.resolve(), self._finished, options.scan, self._searched
        )
        return ""

    def _searched(self) -> None:
        if not self._look_posted and not self._closed:
            self._look_posted = True
            self._post(self._look)

    def _look(self) -> None:
        self._look_posted = False
        self._submit(lambda: "", verb=False)

    def refresh(self) -> None:
        """Ask for a snapshot of how things stand."""
        self._submit(lambda: "", verb=False)

    def close(self, done: Callable[[], None] | None = None) -> None:
        """Stop searching and close the store, on the worker; then ``done`` on the Tk thread."""

        def work() -> None:
            self._closed = True
            if self._feed is not None:
                self._feed.close()
            if self._store is not None:
                self._store.close()

        self._worker.submit(work, lambda _: done() if done is not None else None)

    # --- verbs --------------------------------------------------------------------------------------------------

    def _verb(
        self, call: Callable[[CurationSession], GroupState], seen: bool = False, skipped: bool = False
    ) -> None:
        def work() -> str:
            self._count_time()
            state = call(self._open_session())
            self._seen += seen
            self._skipped += skipped
            if state.phase is Phase.CONTINUE and not self.options.ask_to_continue:
                state = self._open_session().finish_group(automatic=True)
            if state.phase is Phase.DONE:
                self._close_group()
            else:
                self._take_growth()
            return ""

        self._submit(work)

    def _open_session(self) -> CurationSession:
        if self._session is None:
            raise RuntimeError("the session is not open")
        return self._session

    def answer(
        self, best: int | None = None, worst: int | None = None, tie: bool = False, both_bad: bool = False
    ) -> None:
        """Answer the open question; nothing given is a skip."""
        skipped = best is None and worst is None and not tie and not both_bad
        self._verb(lambda session: session.answer(best, worst, tie, both_bad), True, skipped)

    def judge(self, good: bool | None) -> None:
        """TRIAGE: good, bad, or neither."""
        self._verb(lambda session: session.judge(good), True, good is None)

    def choose(self, best: int, worst: int) -> None:
        """SELECT: export these two."""
        self._verb(lambda session: session.choose(best, worst))

    def pick_now(self) -> None:
        """Export best over worst as the ranking stands."""
        self._verb(lambda session: session.pick_now())

    def export_ranked(self, order: Sequence[int], count: int) -> None:
        """Export ``count`` pairs of an approved order."""
        self._verb(lambda session: session.export_ranked(order, count))

    def go_on(self) -> None:
        """Keep scoring this prompt."""
        self._verb(lambda session: session.go_on())

    def next_group(self) -> None:
        """This prompt is done."""
        self._verb(lambda session: session.finish_group())

    def undo(self) -> None:
        """Take the last step back, in whatever group it was."""
        self._submit(self._undo)

    def _undo(self) -> str:
        session, feed = self._open_session(), self._feed
        assert feed is not None
        key = session.undo()
        self._recount()
        if key is None:
            return "There is nothing to undo."
        current = self._group
        if current is not None and current.key == key:
            return ""
        group = feed.take(key)
        if group is None:
            self._finished.discard(key)
            if feed.status().searching:
                return "Undone. Its prompt comes again later."
            return "Undone. Its images are not in this source folder."
        if current is not None:
            feed.put_back(current)
        self._finished.discard(key)
        self._group = group
        session.open(group)
        return ""

    # --- where we are -------------------------------------------------------------------------------------------

    def _close_group(self) -> None:
        if self._group is not None:
            self._finished.add(self._group.key)
            self._done_here += 1
        self._group = None

    def _recount(self) -> None:
        assert self._store is not None
        self._seen = self._skipped = 0
        for event in self._store.events():
            data = event.payload
            if event.kind == "answer":
                self._seen += 1
                nothing = data["best"] is None and data["worst"] is None
                self._skipped += nothing and not data["tie"] and not data["both_bad"]
            elif event.kind == "judge":
                self._seen += 1
                self._skipped += data["good"] is None

    def _take_growth(self) -> None:
        """Between two questions, take in images that the scan has found since the group was opened."""
        assert self._feed is not None
        if self._group is not None:
            group = self._feed.take(self._group.key)
            if group is not None and group is not self._group:
                self._group = group
                self._open_session().open(group)

    def _count_time(self) -> None:
        now = time.monotonic()
        self._worked += min(now - self._last, PAUSE_SECONDS)
        self._last = now

    def _advance(self) -> None:
        """Open the next group that has a question."""
        session, feed = self._open_session(), self._feed
        assert feed is not None
        while self._group is None and (group := feed.next()) is not None:
            if session.open(group).phase is Phase.DONE:
                self._finished.add(group.key)
            else:
                self._group = group
                self._last = time.monotonic()

    def _snapshot(self, note: str) -> Snapshot:
        session, feed, store = self._open_session(), self._feed, self._store
        assert feed is not None
        assert store is not None
        self._advance()
        status = feed.status()
        if status.failure is not None and self._group is None:
            raise status.failure
        group = self._group
        state = None if group is None else session.state()
        pairs: tuple[Pair, ...] = ()
        if group is not None and state is not None and state.pairs:
            names = [i for e in store.events(group.key) for i in e.payload.get("pair_ids", [])]
            pairs = tuple(pair for pair in map(store.pair, names) if pair is not None)
        coming = [g.path(i) for g in feed.coming(LOOK_AHEAD) for i in range(min(8, len(g.files)))]
        return Snapshot(
            group,
            state,
            Counts(self._seen, self._skipped, store.pair_count()),
            status,
            len(self._finished),
            pairs,
            self._seconds_left(status),
            tuple(coming),
            note,
        )

    def _seconds_left(self, status: FeedStatus) -> float | None:
        left = status.groups - len(self._finished)
        if not self._done_here or not status.counted:
            return None
        return self._worked / self._done_here * max(0, left)

    # --- at the end ---------------------------------------------------------------------------------------------

    def faults(self) -> list[ScanFault]:
        """The files that were left out so far."""
        return [] if self._feed is None else list(self._feed.faults)

    def _open_store(self) -> CurationStore:
        if self._store is None:
            raise RuntimeError("the session is not open")
        return self._store

    def finalise(
        self, percentage: float, done: Callable[[tuple[int, int, int]], None], failed: Failed
    ) -> None:
        """Sort the pairs into train and val; ``done`` gets how many are in each, and how many have no prompt."""

        def work() -> tuple[int, int, int]:
            store = self._open_store()
            manifest = store.manifest()
            try:
                counts = finalize_export(store.output_dir, manifest, percentage)
                return (*counts, unconditional_pairs(manifest))
            finally:
                store.sync_from_manifest(manifest)

        self._worker.submit(work, done, failed)

    def export_other(self, kind: str, target: Path, done: Callable[[int], None], failed: Failed) -> None:
        """Copy the finalised pairs in a form other programs read; ``done`` gets how many."""
        writer = {"datasets": export_datasets_folder, "jsonl": export_jsonl_folder}[kind]
        self._worker.submit(lambda: writer(self._open_store().output_dir, target), done, failed)

    def statistics(self, done: Callable[[tuple[AnswerStatistics, list[Pair]]], None]) -> None:
        """How consistent the answers are, and all pairs."""

        def work() -> tuple[AnswerStatistics, list[Pair]]:
            store = self._open_store()
            return answer_statistics(store.events()), store.pairs()

        self._worker.submit(work, done)
