"""Walks through groups one after the other. It skips finished ones, and goes back where an undo leads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from modules.curation.choosing.base import Layout
from modules.curation.group_state import GroupState, Phase
from modules.curation.GroupsAhead import GroupsAhead, SearchStatus
from modules.curation.ImageGroup import ImageGroup
from modules.curation.marking.Marks import Marks
from modules.curation.session import CurationSession, Refused
from modules.util.files.EventLog import Event


@dataclass(frozen=True)
class Counts:
    """Counts of the whole output folder, over all sessions.

    Args:
        seen: answered questions, including skips.
        skipped: skipped questions.
        paired: pairs in the folder.
        passed: groups finished without a pair.
        liked, disliked: images marked so on pages of many prompts.
        looked_at: images marked or seen there.
    """

    seen: int = 0
    skipped: int = 0
    paired: int = 0
    passed: int = 0
    liked: int = 0
    disliked: int = 0
    looked_at: int = 0


class GroupWalk:
    """A session's walk through the groups of a source folder, for a window or the line protocol.

    Args:
        session: open on the output folder.
        ahead: finds the groups.
        wait: whether to wait until the next group is found; a window instead tries again when there is news.
        ask_to_continue: whether to ask before ending a group with enough pairs; otherwise it ends.
    """

    def __init__(
        self, session: CurationSession, ahead: GroupsAhead, wait: bool = True, ask_to_continue: bool = True
    ) -> None:
        self.session = session
        self._open: ImageGroup | None = None
        self.closed = 0
        """Groups finished since the walk began, for measuring the pace."""
        self._ahead = ahead
        self._wait = wait
        self._ask = ask_to_continue
        finished = session.finished_groups()
        self._finished = dict.fromkeys(finished.keys())
        self._passed = finished.without_pairs()
        self.marks = Marks()
        """Marks of all groups."""
        self._seen = self._skipped = 0
        self._counted_to = 0
        self._count(session.store.events())
        self.advance()

    # --- where we are -------------------------------------------------------------------------------------------

    @property
    def group(self) -> ImageGroup | None:
        """The open group, without images that have disappeared; ``None`` at the end, and while searching for
        the next group.
        """
        return None if self._open is None else self.session.group

    @property
    def finished(self) -> int:
        """Number of finished groups, over all sessions."""
        return len(self._finished)

    @property
    def counts(self) -> Counts:
        """Counts of the folder."""
        paired = self.session.store.pair_count()
        liked, disliked = self.marks.count(True), self.marks.count(False)
        looked_at = self.marks.judged
        seen = self._seen + looked_at
        return Counts(seen, self._skipped, paired, len(self._passed), liked, disliked, looked_at)

    def passed(self) -> list[ImageGroup]:
        """The groups finished without a pair, as far as they were found in this source folder."""
        found = [group for key in self._passed if (group := self._ahead.known(key)) is not None]
        return sorted(found, key=lambda group: (group.prompt, group.aspectratio))

    def state(self) -> GroupState | None:
        """The state of the open group, if there is one."""
        return None if self._open is None else self.session.state()

    def status(self) -> SearchStatus:
        """Progress of the search."""
        return self._ahead.status()

    def coming(self, count: int) -> list[ImageGroup]:
        """The next groups, for decoding ahead."""
        return self._ahead.coming(count)

    def _count(self, events: Iterable[Event]) -> None:
        for event in events:
            data = event.payload
            if event.kind == "answer":
                self._seen += 1
                nothing = data["best"] is None and data["worst"] is None
                self._skipped += nothing and not data["tie"] and not data["both_bad"]
            elif event.kind == "judge":
                self._seen += 1
                self._skipped += data["good"] is None
            self.marks.take(event)
            self._counted_to = max(self._counted_to, event.seq)

    # --- steps --------------------------------------------------------------------------------------------------

    def act(self, verb: Callable[[CurationSession], GroupState]) -> None:
        """Run a verb of the session. If it ended the group, open the next one."""
        self._end(verb(self.session))
        self._count_on()
        self.advance()

    def note(self, verb: Callable[[CurationSession], None]) -> None:
        """Run a verb that may concern any group and ends none."""
        verb(self.session)
        self._count_on()

    def _count_on(self) -> None:
        self._count(self.session.store.events(after=self._counted_to))

    def _end(self, state: GroupState) -> GroupState:
        """End the open group if it has enough pairs and the person is not to be asked whether to continue."""
        asks = self._ask or state.phase is not Phase.CONTINUE
        return state if asks else self.session.finish_group(automatic=True)

    def advance(self) -> None:
        """Take in images found since the group was opened. If it is done, or none is open, open the next
        group that has a question.
        """
        if self._open is not None:
            state = self.session.state()
            if state.phase is not Phase.DONE:
                self._grow(self._open)
                return
            self._close(self._open, state)
            self.closed += 1
        self._open = None
        while (group := self._ahead.next(self._wait)) is not None:
            state = self._end(self.session.open(group))
            if state.phase is not Phase.DONE:
                self._show(group)
                return
            self._close(group, state)
        if not self._ahead.status().searching:
            self.session.store.note_all_shown(self._ahead.began)

    def _close(self, group: ImageGroup, state: GroupState) -> None:
        self._finished[group.key] = None
        if not state.pairs:
            self._passed.add(group.key)

    def _show(self, group: ImageGroup) -> None:
        self._open = group
        self._unfinish(group.key)
        self.session.store.note_all_shown(None)

    def _unfinish(self, key: str) -> None:
        self._finished.pop(key, None)
        self._passed.discard(key)

    def _grow(self, group: ImageGroup) -> None:
        grown = self._ahead.known(group.key)
        if grown is not None and grown is not group:
            self._open = grown
            self.session.open(grown)

    def open(self, key: str) -> None:
        """Show a finished group again. The open group comes after it.

        Raises:
            Refused: the group was not found in this source folder, or has fewer than two images left.
        """
        if self._open is not None and self._open.key == key:
            return
        group = self._ahead.take(key, self._wait)
        if group is None:
            raise Refused("the images of this prompt were not found in this source folder")
        before = self._open
        try:
            if self.session.open(group).phase is Phase.DONE:
                self.session.reopen()
        except Refused:
            if before is not None:
                self.session.open(before)
            raise
        if before is not None:
            self._ahead.put_back(before)
        self._show(group)
        self.advance()

    def later(self) -> None:
        """Postpone the open group until after all others."""
        if self._open is not None:
            self._ahead.put_last(self._open)
            self._open = None
            self.advance()

    def _take_along(self, key: str) -> None:
        """Return groups to the queue that were finished after that of ``key`` and no longer are."""
        still = self.session.finished_groups().keys()
        back = [one for one in self._finished if one not in still and one != key]
        for one in reversed(back):
            self._unfinish(one)
            group = self._ahead.take(one, self._wait)
            if group is not None:
                if self._open is not None:
                    self._ahead.put_back(self._open)
                    self._open = None
                self._ahead.put_back(group)

    def undo(self) -> str | None:
        """Undo the last step and open its group, if that was found in this source folder.

        Returns:
            The key of the group; ``None`` if there was nothing to undo.
        """
        key = self.session.undo()
        self._seen = self._skipped = 0
        self.marks = Marks()
        self._count(self.session.store.events())
        if key is None:
            return None
        if self.session.way.layout is Layout.SHEET and key not in self._finished and self._ahead.waits(key):
            self.advance()
            return key
        self._take_along(key)
        self._unfinish(key)
        if self._open is None or self._open.key != key:
            group = self._ahead.take(key, self._wait)
            if group is not None:
                if self._open is not None:
                    self._ahead.put_back(self._open)
                self._show(group)
                self.session.open(group)
        self.advance()
        return key
