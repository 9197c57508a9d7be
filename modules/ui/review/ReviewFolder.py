"""A folder of pairs under review: its pairs and their faults. No Tk here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from modules.curation.intake.image_size import image_size
from modules.curation.review.review import Fault, PairReview
from modules.curation.review.review_fixes import fix_faults
from modules.curation.review.review_journal import TrashSize
from modules.curation.store import CurationStore
from modules.util.dpo_curation_util import FinalizedPair
from modules.util.errors import DataError
from modules.util.pairs.dpo_pair_files import PLACES

CHECK_SECONDS = 0.1
"""Checking pauses at this interval so that actions of the person can run."""


@dataclass(frozen=True)
class ReviewState:
    """The state that a page shows.

    Args:
        checked: number of pairs checked for faults, out of ``len(pairs)``.
    """

    pairs: tuple[FinalizedPair, ...]
    faults: dict[str, tuple[Fault, ...]]
    checked: int

    @property
    def complete(self) -> bool:
        """True if every pair has been checked."""
        return self.checked >= len(self.pairs)


class ReviewFolder:
    """An open folder. Its methods are called one at a time, on a worker thread.

    The store is kept open only for its lock, which prevents picking into a folder under review.

    Args:
        resolution: the training resolution whose crop buckets are compared.
    """

    def __init__(self, output: Path, resolution: int) -> None:
        self._resolution = resolution
        self._store = CurationStore(output)
        try:
            self._review = PairReview(output)
            self._pairs = {pair.pair_id: pair for pair in self._review.pairs()}
        except BaseException:
            self._store.close()
            raise
        self._faults: dict[str, tuple[Fault, ...]] = {}
        self._unchecked = list(reversed(self._pairs))

    def close(self) -> None:
        """Release the folder."""
        self._store.close()

    def state(self) -> ReviewState:
        """The current state."""
        pairs = sorted(self._pairs.values(), key=lambda pair: (PLACES.index(pair.split), pair.pair_id))
        checked = len(pairs) - sum(name in self._pairs for name in self._unchecked)
        return ReviewState(tuple(pairs), dict(self._faults), checked)

    def check_some(self) -> ReviewState:
        """Check a few more pairs for faults. Missing files of a manifest are reported with the last pairs."""
        end = time.monotonic() + CHECK_SECONDS
        while self._unchecked and time.monotonic() < end:
            self._look_at(self._unchecked.pop())
        if not self._unchecked:
            self._look_for_orphans()
        return self.state()

    def _look_for_orphans(self) -> None:
        for fault in self._review.orphans():
            found = self._faults.get(fault.pair_id, ())
            self._faults[fault.pair_id] = (*(f for f in found if f != fault), fault)

    def _look_at(self, name: str) -> None:
        """Reread one pair and check it for faults."""
        pair = self._review.find(name)
        self._faults.pop(name, None)
        if pair is None:
            self._pairs.pop(name, None)
            return
        self._pairs[name] = pair
        try:
            found = self._review.faults_in(pair, self._resolution, image_size)
        except (DataError, OSError) as error:
            found = [Fault(name, "unreadable", str(error), "remove")]
        if found:
            self._faults[name] = tuple(found)

    def act(self, name: str, do: Callable[[PairReview, str], object]) -> ReviewState:
        """Change one pair and check it again."""
        try:
            do(self._review, name)
        finally:
            self._look_at(name)
        return self.state()

    def undo(self) -> ReviewState | None:
        """Undo the last action; ``None`` if there is none."""
        if not self._review.undo():
            return None
        assert self._review.undone is not None
        self._look_at(self._review.undone)
        if self._review.undone not in self._pairs:
            self._look_for_orphans()
        return self.state()

    def trash(self) -> TrashSize:
        """The size of the removed pairs."""
        return self._review.trash()

    def empty_trash(self) -> TrashSize:
        """Delete removed pairs for good, including what undo needs. Returns how much was deleted."""
        return self._review.empty_trash()

    def fix(self, name: str | None = None) -> ReviewState:
        """Fix every fixable fault of one pair or of all pairs."""
        names = list(self._faults) if name is None else [name]
        faults = [fault for one in names for fault in self._faults.get(one, ())]
        try:
            fix_faults(self._review, faults)
        finally:
            for one in names:
                self._look_at(one)
            self._look_for_orphans()
        return self.state()
