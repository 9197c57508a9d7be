"""Groups found ahead of the person who goes through them, a bounded number of them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from modules.curation.intake.scan import ScanFault
from modules.curation.session import ImageGroup

Found = ImageGroup | ScanFault


class GroupsAhead(Iterator[ImageGroup]):
    """Runs a scan in a thread; iterating waits for the next group.

    Args:
        scan: gets a function that says whether to stop, gives groups and faults.
        fault: called in that thread with every fault.
        ready: how many groups wait at most; the scan, and the decoding for duplicates, then pause.
    """

    def __init__(
        self,
        scan: Callable[[Callable[[], bool]], Iterator[Found]],
        fault: Callable[[ScanFault], None],
        ready: int = 4,
    ) -> None:
        self._queue: queue.Queue[ImageGroup | None] = queue.Queue(ready)
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, args=(scan, fault), name="pair-scan", daemon=True)
        self._thread.start()

    def _run(
        self, scan: Callable[[Callable[[], bool]], Iterator[Found]], fault: Callable[[ScanFault], None]
    ) -> None:
        try:
            for found in scan(self._stop.is_set):
                if isinstance(found, ScanFault):
                    fault(found)
                else:
                    self._put(found)
                if self._stop.is_set():
                    break
        except Exception as error:  # noqa: BLE001 - raised again where the groups are taken
            self._failure = error
        self._put(None)

    def _put(self, group: ImageGroup | None) -> None:
        while not self._stop.is_set():
            try:
                self._queue.put(group, timeout=0.1)
                return
            except queue.Full:
                continue

    def __next__(self) -> ImageGroup:
        if not self._ended:
            group = self._queue.get()
            if group is not None:
                return group
            self._ended = True
            if self._failure is not None:
                raise self._failure
        raise StopIteration

    def close(self) -> None:
        """Stop the scan and wait for its thread."""
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> GroupsAhead:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
