"""Walking through groups one after the other: skipping finished ones, and back where an undo leads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from modules.curation.session import CurationSession, GroupState, ImageGroup, Phase


class GroupWalk:
    """The groups of a source folder as a session goes through them.

    Args:
        session: open on the output folder.
        groups: in the order to show them; taken one by one as they are needed, so that a scan may still run. A
            group may come again with more images; it then takes the place of the smaller one.
    """

    def __init__(self, session: CurationSession, groups: Iterator[ImageGroup]) -> None:
        self.session = session
        self._coming = groups
        self._first: deque[ImageGroup] = deque()
        self._last: deque[ImageGroup] = deque()
        self._known: dict[str, ImageGroup] = {}
        self._finished = session.finished_groups()
        self.group: ImageGroup | None = None
        self.advance()

    @property
    def finished(self) -> int:
        """How many groups are done, in this and earlier sessions."""
        return len(self._finished)

    def state(self) -> GroupState | None:
        """The state of the open group; ``None`` at the end."""
        return None if self.group is None else self.session.state()

    def advance(self) -> None:
        """Where the open group is done, or there is none: open the next one that has a question."""
        if self.group is not None:
            if self.session.state().phase is not Phase.DONE:
                return
            self._finished.add(self.group.key)
        while (group := self._next()) is not None:
            if self.session.open(group).phase is not Phase.DONE:
                break
            self._finished.add(group.key)
        self.group = group

    def _next(self) -> ImageGroup | None:
        if self._first:
            return self._first.popleft()
        for group in self._coming:
            if self._is_new(group):
                return group
        return self._last.popleft() if self._last else None

    def _is_new(self, group: ImageGroup) -> bool:
        """Whether a group just found is one to show; more images of one that is waiting join it there."""
        before = self._known.get(group.key)
        self._known[group.key] = group
        for queue in (self._first, self._last):
            if before is not None and before in queue:
                queue[queue.index(before)] = group
                return False
        return group.key not in self._finished

    def later(self) -> None:
        """Come back to the open group after all others."""
        if self.group is not None:
            self._last.append(self.group)
            self.group = None
            self.advance()

    def undo(self) -> str | None:
        """Take back the last step and open the group it was in, if that is in this source folder.

        Returns:
            The key of the group; ``None`` when there was nothing to take back.
        """
        key = self.session.undo()
        if key is None:
            return None
        self._finished.discard(key)
        if self.group is None or self.group.key != key:
            group = self._find(key)
            if group is not None:
                if self.group is not None:
                    self._first.appendleft(self.group)
                self.group = group
                self.session.open(group)
        self.advance()
        return key

    def _find(self, key: str) -> ImageGroup | None:
        while key not in self._known and (group := next(self._coming, None)) is not None:
            if self._is_new(group):
                self._first.append(group)
        group = self._known.get(key)
        for queue in (self._first, self._last):
            if group is not None and group in queue:
                queue.remove(group)
        return group
