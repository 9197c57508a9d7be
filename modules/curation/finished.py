"""The groups that are done, and the reasons why a finished group is shown again."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from modules.util.display import counted
from modules.util.files.EventLog import Event

REOPENING = ("answer", "judge", "mark", "close", "pick")
"""Types of events that concern a group whether or not it was finished."""


class GroupRecord:
    """Pairs and end of one group, from its events in order."""

    def __init__(self) -> None:
        self.done = False
        self.pairs = 0
        self._used: set[str] = set()
        self._left: frozenset[str] | None = None
        self._wanted: int | None = None

    def take(self, event: Event) -> None:
        """Process the next event."""
        data = event.payload
        if event.kind == "done":
            self.done = True
            # Sessions before these were recorded leave both unknown; then nothing counts as new.
            self._left = frozenset(data["left"]) if "left" in data else None
            self._wanted = data.get("wanted")
        elif event.kind in (*REOPENING, "go_on", "reopen"):
            self.done = False
        if event.kind == "pick":
            self._used.update(data["used"])
            self.pairs += len(data["pair_ids"])

    def new_images(self, files: Iterable[str]) -> int:
        """Return the number of ``files`` that were not there when the group was finished."""
        if self._left is None:
            return 0
        return sum(name not in self._left and name not in self._used for name in files)

    def why_again(self, files: Collection[str], pairs_per_group: int) -> str:
        """Return the reason why the finished group is shown again, in a few words; empty if it is not.

        This requires two unpaired images and a reason: images were added, or more pairs are wanted now.
        """
        if sum(name not in self._used for name in files) < 2:
            return ""
        new = self.new_images(files)
        if new:
            return f"{counted(new, 'image')} added since it was finished"
        if self._wanted is not None and pairs_per_group > max(self._wanted, self.pairs):
            return f"{pairs_per_group} pairs are wanted now, but it has {self.pairs}"
        return ""


class FinishedGroups:
    """The groups of an output folder that are done.

    Args:
        events: events of the whole folder, in order.
        pairs_per_group: number of pairs wanted from each group now.
    """

    def __init__(self, events: Iterable[Event], pairs_per_group: int) -> None:
        records: dict[str, GroupRecord] = {}
        for event in events:
            record = records.get(event.group_key)
            if record is None:
                record = records[event.group_key] = GroupRecord()
            record.take(event)
        self._records = {key: record for key, record in records.items() if record.done}
        self._wanted = pairs_per_group

    def keys(self) -> set[str]:
        """Keys of all finished groups."""
        return set(self._records)

    def without_pairs(self) -> set[str]:
        """Keys of finished groups that gave no pair."""
        return {key for key, record in self._records.items() if not record.pairs}

    def __call__(self, key: str, files: Collection[str]) -> bool:
        """Return whether the group is done and, given its current files, need not be shown again."""
        record = self._records.get(key)
        return record is not None and not record.why_again(files, self._wanted)
