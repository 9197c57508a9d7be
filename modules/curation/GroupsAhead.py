"""A bounded queue of groups, found by a scan ahead of the person."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from modules.curation.ImageGroup import ImageGroup
from modules.curation.intake.duplicates import HashCache
from modules.curation.intake.folders import HASH_CACHE_NAME
from modules.curation.intake.groups import Finished, ScanOptions, scan_groups
from modules.curation.intake.scan import ScanFault

AHEAD = 12
"""The scan pauses when this many groups, checked for duplicates, are waiting."""
REST_SECONDS = 0.004
LOOK_AGAIN_SECONDS = 0.7
"""Interval between two scans of a folder that is still being filled."""

Found = ImageGroup | ScanFault


@dataclass(frozen=True)
class ScanControl:
    """Callbacks of a running scan.

    Args:
        stopped: returns whether to stop.
        counted: called with the number of groups, once every file was seen.
        finished: returns whether a group is done and will not be shown.
        begins: called before the folder is looked through, each time.
    """

    stopped: Callable[[], bool]
    counted: Callable[[int], None]
    finished: Finished
    begins: Callable[[], None]


Scan = Callable[[ScanControl], Iterator[Found]]
HeldBack = Callable[[], Set[str] | None]
"""Names, relative to the folder, of images to leave out for now; ``None`` once no more images will come."""


@dataclass(frozen=True)
class SearchStatus:
    """Progress of a scan.

    Args:
        groups: number of groups found so far; the total once ``counted``.
        faults: files that are left out.
        counted: whether every file has been seen; the search for duplicates may still be running.
        searching: whether more groups may come.
    """

    groups: int
    faults: int
    counted: bool
    searching: bool


class GroupsAhead:
    """Runs a scan in a thread and returns the groups it found one by one.

    A group may be found again with more images. It then replaces the smaller one, or is returned again.

    Args:
        finished: tells which groups are done; they are remembered, but not returned.
        changed: called from the scanning thread with the progress when there is something new.
        ready: maximum number of waiting groups; beyond it, the scan and the decoding for duplicates pause.
        gentle: whether a window shares the interpreter; the scan then sleeps half of the time.
    """

    def __init__(
        self,
        scan: Scan,
        finished: Finished = lambda key, names: False,
        changed: Callable[[SearchStatus], None] = lambda status: None,
        ready: int = AHEAD,
        gentle: bool = False,
    ) -> None:
        self.faults: list[ScanFault] = []
        self.began = time.time_ns()
        """Start of the last look through the folder, in nanoseconds."""
        self._finished = finished
        self._asked_for: set[str] = set()
        self._changed = changed
        self._room_for = ready
        self._gentle = gentle
        self._news = threading.Condition()
        self._known: dict[str, ImageGroup] = {}
        self._ready: deque[str] = deque()
        self._last: deque[str] = deque()
        self._awaited: str | None = None
        self._total: int | None = None
        self._searching = True
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._rest_at = 0.0
        self._thread = threading.Thread(target=self._run, args=(scan,), daemon=True, name="pair-scan")
        self._thread.start()

    # --- in the scanning thread ---------------------------------------------------------------------------------

    def _run(self, scan: Scan) -> None:
        failure: Exception | None = None
        try:
            for found in scan(ScanControl(self._asked_to_stop, self._count, self._is_finished, self._begins)):
                with self._news:
                    self._take_in(found)
                    self._news.notify_all()
                self._changed(self.status())
                with self._news:
                    self._news.wait_for(self._has_room)
                if self._stop.is_set():
                    break
        except Exception as error:  # noqa: BLE001 - raised again where the groups are taken
            failure = error
        with self._news:
            self._searching, self._failure = False, failure
            self._news.notify_all()
        if not self._stop.is_set():
            self._changed(self.status())

    def _begins(self) -> None:
        self.began = time.time_ns()

    def _take_in(self, found: Found) -> None:
        if isinstance(found, ScanFault):
            self.faults.append(found)
            return
        self._known[found.key] = found
        waiting = found.key in self._ready or found.key in self._last
        if not waiting and not self._is_finished(found.key, found.files):
            self._ready.append(found.key)

    def _is_finished(self, key: str, names: Sequence[str]) -> bool:
        return key not in self._asked_for and self._finished(key, names)

    def _asked_to_stop(self) -> bool:
        """Called by the scan for every file. Once a group is ready, a gentle scan yields here, because it
        would otherwise hold the interpreter's lock whenever the window needs it.
        """
        if self._gentle and self._known:
            now = time.monotonic()
            if now >= self._rest_at:
                time.sleep(REST_SECONDS)
                self._rest_at = now + 2 * REST_SECONDS
        return self._stop.is_set()

    def _count(self, groups: int) -> None:
        self._total = groups
        self._changed(self.status())

    def _has_room(self) -> bool:
        waited_for = self._awaited is not None and self._awaited not in self._known
        return self._stop.is_set() or self._total is None or waited_for or len(self._ready) < self._room_for

    # --- for the one who goes through them ----------------------------------------------------------------------

    def next(self, wait: bool = True) -> ImageGroup | None:
        """The next group that is not done. Postponed groups come after all others.

        Args:
            wait: wait until one is found or the scan has ended; otherwise ``None`` means that none is ready.

        Raises:
            Exception: the error that ended the scan, once all its groups were returned.
        """
        with self._news:
            self._news.notify_all()
            if wait:
                self._news.wait_for(lambda: self._ready or not self._searching)
            if self._ready:
                return self._known[self._ready.popleft()]
            if self._failure is not None:
                raise self._failure
            return self._known[self._last.popleft()] if self._last and not self._searching else None

    def take(self, key: str, wait: bool = True) -> ImageGroup | None:
        """Take a group by its key out of turn, with all images found so far.

        A finished group that has not been found yet is returned once it is.

        Args:
            wait: wait until it is found or the scan has ended.
        """
        with self._news:
            self._asked_for.add(key)
            if wait:
                self._awaited = key
                self._news.notify_all()
                self._news.wait_for(lambda: key in self._known or not self._searching)
                self._awaited = None
            for queue in (self._ready, self._last):
                if key in queue:
                    queue.remove(key)
            return self._known.get(key)

    def known(self, key: str) -> ImageGroup | None:
        """A group that was found, with all images found so far. It keeps its turn."""
        with self._news:
            return self._known.get(key)

    def waits(self, key: str) -> bool:
        """Return whether this group is still waiting for its turn."""
        with self._news:
            return key in self._ready or key in self._last

    def put_back(self, group: ImageGroup) -> None:
        """Return a group to the front of the queue."""
        with self._news:
            self._ready.appendleft(group.key)

    def put_last(self, group: ImageGroup) -> None:
        """Return a group to the end of the queue."""
        with self._news:
            self._last.append(group.key)

    def coming(self, count: int) -> list[ImageGroup]:
        """The next groups, for decoding ahead."""
        with self._news:
            return [self._known[self._ready[i]] for i in range(min(count, len(self._ready)))]

    def status(self) -> SearchStatus:
        """Progress of the scan."""
        with self._news:
            groups = max(len(self._known), self._total or 0)
            return SearchStatus(groups, len(self.faults), self._total is not None, self._searching)

    def close(self) -> None:
        """Stop the scan and wait for its thread."""
        self._stop.set()
        with self._news:
            self._news.notify_all()
        self._thread.join()

    def __enter__(self) -> GroupsAhead:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def search_folder(
    source: Path,
    output: Path,
    options: ScanOptions,
    finished: Finished,
    changed: Callable[[SearchStatus], None] = lambda status: None,
    gentle: bool = False,
    held_back: HeldBack = lambda: None,
) -> GroupsAhead:
    """Search a folder for groups.

    Args:
        source: the folder with images.
        output: excluded from the scan; it also stores the hashes of images.
        finished, changed, gentle: as for ``GroupsAhead``.
        held_back: for a folder that is still being filled; it is scanned again until this returns ``None``.
    """

    def scan(control: ScanControl) -> Iterator[Found]:
        seen: set[str] = set()
        groups = 0

        def count(found: int) -> None:
            nonlocal groups
            groups += found
            control.counted(groups)

        with HashCache(output / HASH_CACHE_NAME) as cache:
            while not control.stopped():
                waiting = held_back()
                control.begins()
                taken: set[str] = set()
                takes = partial(_take_once, seen | (waiting or set()), taken)
                yield from scan_groups(
                    source, output, options, control.finished, control.stopped, cache, count, takes
                )
                seen |= taken
                if waiting is None:
                    return
                time.sleep(LOOK_AGAIN_SECONDS)

    return GroupsAhead(scan, finished, changed, gentle=gentle)


def _take_once(out: Set[str], taken: set[str], name: str) -> bool:
    """Return whether to group an image in this scan. Marks it as taken."""
    if name in out:
        return False
    taken.add(name)
    return True
