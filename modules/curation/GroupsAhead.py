"""Groups found by a scan ahead of the person who goes through them, a bounded number of them."""

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
"""This many groups wait, looked through for duplicates, before the scan pauses."""
REST_SECONDS = 0.004
LOOK_AGAIN_SECONDS = 0.7
"""Between two looks at a folder that is still being filled."""

Found = ImageGroup | ScanFault


@dataclass(frozen=True)
class ScanControl:
    """What a scan asks and tells while it runs.

    Args:
        stopped: whether to stop.
        counted: called with the number of groups, once every file was seen.
        finished: whether a group is done and will not be shown.
    """

    stopped: Callable[[], bool]
    counted: Callable[[int], None]
    finished: Finished


Scan = Callable[[ScanControl], Iterator[Found]]
HeldBack = Callable[[], Set[str] | None]
"""Names, relative to the folder, of images to leave out for now; ``None`` once no more images come."""


@dataclass(frozen=True)
class SearchStatus:
    """How far the scan is.

    Args:
        groups: found so far; all of them once ``counted``.
        faults: files that were left out.
        counted: every file has been seen, though duplicates may still be looked for.
        searching: more groups may come.
    """

    groups: int
    faults: int
    counted: bool
    searching: bool


class GroupsAhead:
    """Runs a scan in a thread and hands out what it found, one group after the other.

    A group may be found again with more images; it then takes the place of the smaller one, or is handed out again.

    Args:
        scan: what to run.
        finished: says which groups are done; they are remembered, not handed out.
        changed: called from the scanning thread with how far it is, when there is something new.
        ready: this many groups wait at most; the scan, and the decoding for duplicates, then pause.
        gentle: whether a window shares the interpreter; the scan then rests half of the time.
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
            for found in scan(ScanControl(self._asked_to_stop, self._count, self._is_finished)):
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
        """Asked by the scan at every file. Once there is something to look at, a gentle scan would otherwise hold the
        interpreter's lock whenever the window needs it."""
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
        """The next group that is not done; those that were put last come after all others.

        Args:
            wait: until one is found or the scan has ended; otherwise ``None`` says that none is ready.

        Raises:
            Exception: what ended the scan, once all it found was handed out.
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
        """A group by its key, with all images found so far, wherever it stands.

        One that was finished and has not been found yet is handed out when it is.

        Args:
            wait: until it is found or the scan has ended.
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
        """A group that was found, with all images found so far; it stays where it stands."""
        with self._news:
            return self._known.get(key)

    def waits(self, key: str) -> bool:
        """Whether this group is still to be handed out."""
        with self._news:
            return key in self._ready or key in self._last

    def put_back(self, group: ImageGroup) -> None:
        """Hand this one out again, before all others."""
        with self._news:
            self._ready.appendleft(group.key)

    def put_last(self, group: ImageGroup) -> None:
        """Hand this one out again, after all others."""
        with self._news:
            self._last.append(group.key)

    def coming(self, count: int) -> list[ImageGroup]:
        """The groups that come next, for decoding ahead."""
        with self._news:
            return [self._known[self._ready[i]] for i in range(min(count, len(self._ready)))]

    def status(self) -> SearchStatus:
        """How far it is."""
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
    """Look through a folder for groups.

    Args:
        source: the folder with images.
        output: left out of the scan; it also keeps the hashes of images.
        finished, changed, gentle: as for ``GroupsAhead``.
        held_back: for a folder that is still being filled; it is looked through again until this is ``None``.
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
    """Whether an image is to be grouped in this look through the folder; notes that it is."""
    if name in out:
        return False
    taken.add(name)
    return True
