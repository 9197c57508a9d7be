"""Groups of images as the scan finds them, handed out one by one."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from modules.curation.session import ImageGroup
from modules.ui.curation.scanning import ScanFault, ScanOptions, scan_groups

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FeedStatus:
    """How far the scan is."""

    groups: int
    images: int
    faults: int
    searching: bool
    failure: Exception | None = None


class GroupFeed:
    """Runs a scan in a thread and keeps what it found.

    Args:
        source: the folder with images.
        output: left out of the scan.
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
        self._finished = frozenset(finished)
        self._changed = changed
        self._lock = threading.Lock()
        self._known: dict[str, ImageGroup] = {}
        self._ready: deque[ImageGroup] = deque()
        self._images = 0
        self._searching = True
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self.faults: list[ScanFault] = []
        self._thread = threading.Thread(
            target=self._run, args=(source, output, options), daemon=True, name="pair-tool-scan"
        )
        self._thread.start()

    def _run(self, source: Path, output: Path, options: ScanOptions) -> None:
        try:
            for found in scan_groups(source, output, options, self._finished, self._stop.is_set):
                with self._lock:
                    if isinstance(found, ScanFault):
                        self.faults.append(found)
                    else:
                        self._take(found)
                self._changed()
        except Exception as error:  # noqa: BLE001 - handed over whole, to be shown
            self._failure = error
        self._searching = False
        if not self._stop.is_set():
            self._changed()

    def _take(self, group: ImageGroup) -> None:
        self._known[group.key] = group
        self._images += len(group.files)
        if group.key not in self._finished:
            self._ready.append(group)

    def next(self) -> ImageGroup | None:
        """The next group that is not done, if one is ready."""
        with self._lock:
            return self._ready.popleft() if self._ready else None

    def put_back(self, group: ImageGroup) -> None:
        """Hand this one out again, before all others."""
        with self._lock:
            self._ready.appendleft(group)

    def take(self, key: str) -> ImageGroup | None:
        """A group by its key, wherever it stands."""
        with self._lock:
            group = self._known.get(key)
            if group is not None and group in self._ready:
                self._ready.remove(group)
            return group

    def coming(self, count: int) -> list[ImageGroup]:
        """The groups that come next, for decoding ahead."""
        with self._lock:
            return [self._ready[i] for i in range(min(count, len(self._ready)))]

    def status(self) -> FeedStatus:
        """Counts so far."""
        with self._lock:
            return FeedStatus(
                len(self._known), self._images, len(self.faults), self._searching, self._failure
            )

    def close(self) -> None:
        """Stop the scan."""
        self._stop.set()
        self._thread.join(timeout=10)
