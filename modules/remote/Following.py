"""Follows the events of a run on another computer and stores them in its mirror folder."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

from modules.remote.again import Tell, persistently
from modules.remote.Connection import Ask
from modules.remote.Far import Far
from modules.remote.growing import append_at
from modules.remote.hashing import digest
from modules.remote.records import Record
from modules.remote.there.limits import EVENTS
from modules.runner.events import EventReader
from modules.util.errors import UserError
from modules.util.owned_files import Owned, shown

NOTHING = hashlib.sha256().hexdigest()
MAX_EVENTS = 8 << 30
"""Maximum size of the events of one run accepted from another computer, in bytes, with those kept aside."""
ASIDE = "events-before-"
Show = Callable[[dict[str, Any]], None]


class Following:
    """Follows one run.

    Args:
        show: called with every event.
        tell: shows a line about the connection.
        earlier: whether to show events that were fetched before, too.
    """

    def __init__(self, record: Record, show: Show, tell: Tell, earlier: bool = False) -> None:
        self.record, self._show, self._tell = record, show, tell
        self._owned = Owned(record.folder, local=True)
        self._reader = EventReader(record.folder / EVENTS)
        self._size = self._reader.path.stat().st_size if self._reader.path.exists() else 0
        self._aside = sum(path.stat().st_size for path in record.folder.glob(f"{ASIDE}*.jsonl"))
        if not earlier:
            self._reader.poll()

    async def run(self, ask: Ask) -> str:
        """Follow until the run has ended, over as many connections as needed. Returns its final state.

        Raises:
            UserError: the run does not exist, or the first connection fails.
        """
        self._poll()
        return await persistently(self.record.remote, ask, self._tell, self.work)

    async def work(self, far: Far) -> str:
        """Follow over one connection, continuing after the bytes already stored.

        Raises:
            UserError: the other computer sends too much. Lost: the connection ended.
        """
        sha = await digest(self._reader.path) if self._size else NOTHING
        ended = await far.ask(
            dict[str, Any], "tail", run=self.record.run, offset=self._size, sha256=sha, note=self._take
        )
        state = ended.get("state")
        return state if isinstance(state, str) else "died"

    async def _take(self, message: dict[str, Any], data: bytes) -> None:
        if message.get("from") == 0 and self._size:
            aside = f"{ASIDE}{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
            self._tell(f"the events there are not those fetched before, which are kept as {aside}")
            self._owned.move(EVENTS, aside)
            self._aside += self._size
            self._size = 0
        if data:
            if self._aside + self._size + len(data) > MAX_EVENTS:
                raise UserError(
                    f"{self.record.remote.address()} sends more than {MAX_EVENTS} bytes of events",
                    hint=f"if you trust it, move {ASIDE}*.jsonl out of {shown(self.record.folder)}, then follow again",
                )
            append_at(self._owned, EVENTS, self._size, data)
            self._size += len(data)
            self._poll()

    def _poll(self) -> None:
        for event in self._reader.poll():
            self._show(event)
