"""A picking session for a window. Actions run on a worker thread; the window gets snapshots to draw."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from modules.curation.choosing.base import Layout
from modules.curation.exchange.public_formats import export_datasets_folder, export_jsonl_folder
from modules.curation.group_state import GroupState, SessionSettings
from modules.curation.GroupsAhead import GroupsAhead, HeldBack, SearchStatus, search_folder
from modules.curation.GroupWalk import Counts, GroupWalk
from modules.curation.ImageGroup import ImageGroup
from modules.curation.intake.duplicates import FingerprintDistance
from modules.curation.intake.folders import check_folders
from modules.curation.intake.groups import ScanOptions
from modules.curation.intake.scan import ScanFault
from modules.curation.marking.Marks import Preferred
from modules.curation.marking.Sheet import Sheet, Strip
from modules.curation.session import CurationSession, Refused
from modules.curation.statistics import AnswerStatistics, answer_statistics
from modules.curation.store import CurationStore
from modules.ui.texts import choosing as words
from modules.ui.widgets.SerialWorker import Failed, SerialWorker
from modules.util.dpo_curation_util import Pair, finalize_export, unconditional_pairs

log = logging.getLogger(__name__)
PAUSE_SECONDS = 30.0
"""A longer wait between two answers is a break and does not count as working time."""
LOOK_AHEAD = 2
Question = tuple[str, int, tuple[tuple[str, int, int], ...]]
"""The open group with its number of events, and the key, images and events of every prompt of the page."""


@dataclass(frozen=True)
class Snapshot:
    """State of a session at one moment, as a window shows it.

    Args:
        group, state: ``None`` while searching and when no group is left.
        pairs: pairs of the open group so far.
        finished: number of finished groups.
        seconds_left: ``None`` until it can be estimated.
        coming: images worth decoding ahead.
        strips: the prompts of the page, the open one first, if several are shown at once.
        note: one sentence about what just happened, if it needs one.
    """

    group: ImageGroup | None
    state: GroupState | None
    counts: Counts
    search: SearchStatus
    finished: int
    pairs: tuple[Pair, ...] = ()
    seconds_left: float | None = None
    coming: tuple[Path, ...] = ()
    note: str = ""
    strips: tuple[Strip, ...] = ()

    @property
    def question(self) -> Question | None:
        """An identifier of the open question; ``None`` if nothing is asked."""
        if self.group is None or self.state is None:
            return None
        strips = ((one.group.key, len(one.group.files), one.state.events) for one in self.strips)
        return self.group.key, self.state.events, tuple(strips)


@dataclass(frozen=True)
class PickingOptions:
    """The input of the start page."""

    source: Path
    output: Path
    session: SessionSettings = field(default_factory=SessionSettings)
    scan: ScanOptions = field(default_factory=ScanOptions)
    ask_to_continue: bool = True
    held_back: HeldBack = lambda: None
    """As for ``search_folder``."""


class PairController:
    """The session behind the choosing page.

    Args:
        worker: runs everything that touches the store.
        changed: called on the Tk thread with every new snapshot.
        failed: called on the Tk thread with an error, after ``changed`` with what was saved before it.
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
        self.post = post
        self.waiting = 0
        self._store: CurationStore | None = None
        self._ahead: GroupsAhead | None = None
        self._walk: GroupWalk | None = None
        self._sheet: Sheet | None = None
        self._note = ""
        self._worked = 0.0
        self._last = time.monotonic()
        self._look_posted = False
        self._closed = False

    # --- opening and closing ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the folder and start searching."""
        self._submit(self._open)

    def _submit(self, work: Callable[[], str], verb: bool = True) -> None:
        """Run an action on the worker. ``waiting`` counts actions without a snapshot yet, so above 0 the
        screen is outdated.
        """
        self.waiting += verb

        def run() -> tuple[Snapshot | None, Exception | None]:
            if self._closed:
                return None, None
            try:
                note = work()
            except Refused as refusal:
                said = refusal.message if refusal.hint is None else f"{refusal.message}: {refusal.hint}"
                note = f"{said[:1].upper()}{said[1:]}."
            except Exception as error:  # noqa: BLE001 - handed over whole, to be shown
                return self._after(error), error
            self._note = note
            return self._snapshot(note), None

        def done(outcome: tuple[Snapshot | None, Exception | None]) -> None:
            shot, error = outcome
            self.waiting -= verb
            if shot is not None:
                self._changed(shot)
            if error is not None:
                self._failed(error)

        def failed(error: Exception) -> None:
            self.waiting -= verb
            self._failed(error)

        self._worker.submit(run, done, failed)

    def _after(self, error: Exception) -> Snapshot | None:
        """The state after a verb that failed, if something is asked then. The answer may be on the disk, so that the
        question is another one.
        """
        try:
            shot = None if self._walk is None else self._snapshot("")
            asks = shot is not None and shot.state is not None and bool(shot.state.question)
            return shot if asks else None
        except Exception as other:  # noqa: BLE001 - the first error is the one to show
            log.warning("after the error %r the session cannot be read: %r", error, other)
            return None

    def _open(self) -> str:
        options = self.options
        check_folders(options.source, options.output)
        options.scan.edits.check()
        self._store = CurationStore(options.output)
        self._store.note_way(options.session.mode.value)
        self._store.note_goal(options.session.pairs_per_group, options.session.threshold)
        session = CurationSession(self._store, options.session, FingerprintDistance())
        self._ahead = search_folder(
            options.source,
            options.output.resolve(),
            options.scan,
            session.finished_groups(),
            self._searched,
            gentle=True,
            held_back=options.held_back,
        )
        page = session.way.layout is Layout.SHEET
        asks = options.ask_to_continue and not page
        self._walk = GroupWalk(session, self._ahead, wait=False, ask_to_continue=asks)
        self._sheet = Sheet(self._walk) if page else None
        return ""

    def _searched(self, _status: SearchStatus) -> None:
        if not self._look_posted and not self._closed:
            self._look_posted = True
            self.post(self._look)

    def _look(self) -> None:
        self._look_posted = False
        self.refresh()

    def refresh(self) -> None:
        """Request a snapshot of the current state, with the next group if one was waited for.

        On a page of prompts, the open prompt takes in images found since. A question of any other way of
        choosing stays as it is.
        """

        def work() -> str:
            walk = self._open_walk()
            if walk.group is None:
                walk.advance()
                self._last = time.monotonic()
            elif self._sheet is not None:
                walk.advance()
            return ""

        self._submit(work, verb=False)

    def close(self, done: Callable[[], None] | None = None) -> None:
        """Stop searching and close the store on the worker, then call ``done`` on the Tk thread."""

        def work() -> None:
            self._closed = True
            if self._ahead is not None:
                self._ahead.close()
            if self._store is not None:
                self._store.close()

        self._worker.submit(work, lambda _: done() if done is not None else None)

    # --- verbs --------------------------------------------------------------------------------------------------

    def _act(self, act: Callable[[], object]) -> None:
        """Do what the person asked for."""

        def work() -> str:
            self._count_time()
            act()
            session = self._open_walk().session
            note, session.note = session.note, ""
            return note

        self._submit(work)

    def _verb(self, call: Callable[[CurationSession], GroupState]) -> None:
        self._act(lambda: self._open_walk().act(call))

    def _open_walk(self) -> GroupWalk:
        if self._walk is None:
            raise RuntimeError("the session is not open")
        return self._walk

    def answer(
        self, best: int | None = None, worst: int | None = None, tie: bool = False, both_bad: bool = False
    ) -> None:
        """Answer the open question; without arguments it is skipped."""
        self._verb(lambda session: session.answer(best, worst, tie, both_bad))

    def judge(self, good: bool | None) -> None:
        """TRIAGE: rate the image as good, bad or neither."""
        self._verb(lambda session: session.judge(good))

    def choose(self, best: int, worst: int) -> None:
        """SELECT: export these two images as a pair."""
        self._verb(lambda session: session.choose(best, worst))

    def toggle(self, key: str, name: str, like: bool) -> None:
        """GRID: like or dislike an image of the page, or remove that mark."""
        self._act(lambda: self._open_sheet().toggle(key, name, like))

    def see(self, key: str, names: Sequence[str]) -> None:
        """GRID: record that these images of the page were on the screen long enough."""

        def work() -> str:
            # the person may have moved to the next page meanwhile; its images have another key
            with suppress(Refused):
                self._open_sheet().see(key, names)
            return self._note

        self._submit(work, verb=False)

    def close_page(self, drawn: Mapping[str, Collection[str]]) -> None:
        """GRID: save which prompts and images of this page were drawn, then show the next page."""
        self._act(lambda: self._open_sheet().close(drawn))

    def _open_sheet(self) -> Sheet:
        if self._sheet is None:
            raise RuntimeError("this way of choosing has no page")
        return self._sheet

    def comparisons(self, done: Callable[[list[Preferred]], None]) -> None:
        """Everything a taste can learn from the marks of the folder, limited to existing images; paths are
        absolute.
        """

        def work() -> list[Preferred]:
            root = self.options.source
            return [
                replace(one, better=str(root / one.better), worse=str(root / one.worse))
                for one in self._open_walk().marks.comparisons()
                if (root / one.better).is_file() and (root / one.worse).is_file()
            ]

        self._worker.submit(work, done)

    def pick_now(self) -> None:
        """Export best over worst by the current ranking, if the answers support one."""
        self._verb(lambda session: session.pick_now())

    def export_ranked(self, order: Sequence[int], count: int) -> None:
        """Export ``count`` pairs of an approved order."""
        self._verb(lambda session: session.export_ranked(order, count))

    def go_on(self) -> None:
        """Keep scoring this prompt."""
        self._verb(lambda session: session.go_on())

    def next_group(self) -> None:
        """Finish this prompt."""
        self._verb(lambda session: session.finish_group())

    def undo(self) -> None:
        """Undo the last action, in whatever group it was."""
        self._submit(self._undo)

    def open(self, key: str) -> None:
        """Show a finished prompt again."""
        self._act(lambda: self._open_walk().open(key))

    def passed(self, done: Callable[[list[ImageGroup]], None]) -> None:
        """The prompts that gave no pair, as far as their images were found."""
        self._worker.submit(lambda: self._open_walk().passed(), done)

    def _undo(self) -> str:
        walk = self._open_walk()
        key = walk.undo()
        if key is None:
            return words.NOTHING_TO_UNDO
        if walk.group is not None and walk.group.key == key:
            return ""
        if walk.status().searching:
            return words.UNDONE_LATER
        return words.UNDONE_ELSEWHERE

    # --- where we are -------------------------------------------------------------------------------------------

    def _count_time(self) -> None:
        now = time.monotonic()
        self._worked += min(now - self._last, PAUSE_SECONDS)
        self._last = now

    def _snapshot(self, note: str) -> Snapshot:
        walk = self._open_walk()
        group, state, search = walk.group, walk.state(), walk.status()
        coming = [g.path(i) for g in walk.coming(LOOK_AHEAD) for i in range(min(8, len(g.files)))]
        return Snapshot(
            group,
            state,
            walk.counts,
            search,
            walk.finished,
            tuple(walk.session.pairs_here()) if state is not None and state.pairs else (),
            self._seconds_left(walk, search),
            tuple(coming),
            note,
            () if self._sheet is None else self._sheet.strips(),
        )

    def _seconds_left(self, walk: GroupWalk, search: SearchStatus) -> float | None:
        if not walk.closed or not search.counted:
            return None
        return self._worked / walk.closed * max(0, search.groups - walk.finished)

    # --- at the end ---------------------------------------------------------------------------------------------

    def faults(self) -> list[ScanFault]:
        """The files left out so far."""
        return [] if self._ahead is None else list(self._ahead.faults)

    def _open_store(self) -> CurationStore:
        if self._store is None:
            raise RuntimeError("the session is not open")
        return self._store

    def finalise(
        self, percentage: float, done: Callable[[tuple[int, int, int]], None], failed: Failed
    ) -> None:
        """Split the pairs into train and val. ``done`` gets the number in each and the number without a
        prompt.
        """

        def work() -> tuple[int, int, int]:
            store = self._open_store()
            store.check_in_place()
            manifest = store.manifest()
            try:
                counts = finalize_export(store.output_dir, manifest, percentage)
                return (*counts, unconditional_pairs(manifest))
            finally:
                store.sync_from_manifest(manifest)
                self._open_walk().marks.write(store.output_dir)

        self._worker.submit(work, done, failed)

    def export_other(self, kind: str, target: Path, done: Callable[[int], None], failed: Failed) -> None:
        """Copy the finalised pairs in a format of other programs. ``done`` gets their number."""
        writer = {"datasets": export_datasets_folder, "jsonl": export_jsonl_folder}[kind]
        self._worker.submit(lambda: writer(self._open_store().output_dir, target), done, failed)

    def marked(self) -> tuple[int, int]:
        """The number of liked and of disliked images."""
        counts = self._open_walk().counts
        return counts.liked, counts.disliked

    def statistics(self, done: Callable[[tuple[AnswerStatistics, list[Pair]]], None]) -> None:
        """Compute how consistent the answers are; also returns all pairs."""

        def work() -> tuple[AnswerStatistics, list[Pair]]:
            store = self._open_store()
            return answer_statistics(store.events()), store.pairs()

        self._worker.submit(work, done)
