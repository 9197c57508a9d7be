"""Groups of images as the scan finds them, handed out one by one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from modules.curation.intake.duplicates import HashCache
from modules.curation.intake.groups import ScanOptions, scan_groups
from modules.curation.intake.scan import ScanFault
from modules.curation.session import ImageGroup

AHEAD = 12
"""So many groups are looked through for duplicates before they are asked for."""
REST_SECONDS = 0.004
HASHES_NAME = ".hashes.sqlite"


@dataclass(frozen=True)
class FeedStatus:
    """How far the scan is.

    Args:
        groups: found so far; all of them once ``counted``.
        counted: every file has been seen, though duplicates may still be looked for.
        searching: more groups may come.
    """

    groups: int
    faults: int
    counted: bool
    searching: bool
    failure: Exception | None = None


class GroupFeed:
    """Runs a scan in a thread and keeps what it found.

    Args:
        source: the folder with images.
        output: left out of the scan; it also keeps the hashes of images.
        finished: keys of groups that are done; they are remembered, not handed out.
        changed: called from the scanning thread when there is something new.
    """

    def __init__(
        self,
        source: Path,
        output: Path,
        finished: Collection[str],
        options: ScanOptions,
        changed: Callable[[], None],
    ) -> None:
        self._source, self._output, self._options = source, output, options
        self._finished = set(finished)
        self._changed = changed
        self._room = threading.Condition()
        self._known: dict[str, ImageGroup] = {}
        self._ready: deque[str] = deque()
        self._total: int | None = None
        self._searching = True
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._rest_at = 0.0
        self.faults: list[ScanFault] = []
        self._thread = threading.Thread(target=self._run, daemon=True, name="pair-tool-scan")
        self._thread.start()

    def _run(self) -> None:
        try:
            with HashCache(self._output / HASHES_NAME) as cache:
                self._scan(cache)
        except Exception as error:  # noqa: BLE001 - handed over whole, to be shown
            self._failure = error
        self._searching = False
        if not self._stop.is_set():
            self._changed()

    def _scan(self, cache: HashCache) -> None:
        stream = scan_groups(
            self._source,
            self._output,
            self._options,
            frozenset(self._finished),
            self._asked_to_stop,
            cache,
            counted=self._count,
        )
        for found in stream:
            with self._room:
                if isinstance(found, ScanFault):
                    self.faults.append(found)
                    continue
                self._take(found)
            self._changed()
            with self._room:
                self._room.wait_for(self._has_room)

    def _asked_to_stop(self) -> bool:
        """Asked by the scan at every file. Once there is something to look at, the scan rests half of the time: it
        would otherwise hold the interpreter's lock whenever the window needs it.
        """
        if self._known:
            now = time.monotonic()
            if now >= self._rest_at:
                time.sleep(REST_SECONDS)
                self._rest_at = now + 2 * REST_SECONDS
        return self._stop.is_set()

    def _count(self, groups: int) -> None:
        self._total = groups
        self._changed()

    def _has_room(self) -> bool:
        return self._stop.is_set() or self._total is None or len(self._ready) < AHEAD

    def _take(self, group: ImageGroup) -> None:
        new = group.key not in self._known
        self._known[group.key] = group
        if new and group.key not in self._finished:
            self._ready.append(group.key)

    def next(self) -> ImageGroup | None:
        """The next group that is not done, if one is ready."""
        with self._room:
            self._room.notify_all()
            return self._known[self._ready.popleft()] if self._ready else None

    def put_back(self, group: ImageGroup) -> None:
        """Hand this one out again, before all others."""
        with self._room:
            self._ready.appendleft(group.key)

    def take(self, key: str) -> ImageGroup | None:
        """A group by its key, with all images found so far, wherever it stands.

        One that was finished and has not been found yet is handed out when it is.
        """
        with self._room:
            self._finished.discard(key)
            if key in self._ready:
                self._ready.remove(key)
            return self._known.get(key)

    def coming(self, count: int) -> list[ImageGroup]:
        """The groups that come next, for decoding ahead."""
        with self._room:
            return [self._known[self._ready[i]] for i in range(min(count, len(self._ready)))]

    def status(self) -> FeedStatus:
        """How far it is."""
        with self._room:
            groups = max(len(self._known), self._total or 0)
            return FeedStatus(
                groups, len(self.faults), self._total is not None, self._searching, self._failure
            )

    def close(self) -> None:
        """Stop the scan."""
        self._stop.set()
        with self._room:
            self._room.notify_all()
        self._thread.join(timeout=10)
