"""Several prompts on one page: the open one of a walk and the next ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from modules.curation.group_state import GroupState
from modules.curation.GroupWalk import GroupWalk
from modules.curation.ImageGroup import ImageGroup
from modules.curation.session import Refused

PROMPTS = 12
"""Prompts per page; as many as a search prepares."""


@dataclass(frozen=True)
class Strip:
    """One prompt of a page, with the marks of its images."""

    group: ImageGroup
    state: GroupState

    @cached_property
    def files(self) -> list[str]:
        """The images that can be marked, in page order."""
        return [self.group.files[i] for i in self.state.question]

    @cached_property
    def _verdicts(self) -> dict[str, bool | None]:
        return {self.group.files[i]: verdict for i, verdict in self.state.situation.verdicts.items()}

    def mark(self, name: str) -> bool | None:
        """The mark of an image."""
        return self._verdicts.get(name)

    def is_new(self, name: str) -> bool:
        """Return whether an image was neither marked nor seen."""
        return name not in self._verdicts


class Sheet:
    """The prompts of a page. Images are identified by group key and file.

    Args:
        walk: the walk through the groups. Marks of the next groups are stored before they are opened.
    """

    def __init__(self, walk: GroupWalk) -> None:
        self._walk = walk

    def strips(self) -> tuple[Strip, ...]:
        """The prompts of the page, the open one first; empty if no prompt is open."""
        return tuple(map(self._look, self._groups()))

    def _groups(self) -> list[ImageGroup]:
        """Each prompt once. One that was found again with more images may be queued while it is open."""
        first = self._walk.group
        if first is None:
            return []
        coming = {group.key: group for group in self._walk.coming(PROMPTS) if group.key != first.key}
        return [first, *coming.values()][:PROMPTS]

    def _look(self, group: ImageGroup) -> Strip:
        session = self._walk.session
        return Strip(session.intact(group), session.state_of(group))

    def _strip(self, key: str) -> Strip:
        found = next((group for group in self._groups() if group.key == key), None)
        if found is None:
            raise Refused("this prompt is not on the page")
        return self._look(found)

    def mark(self, key: str, name: str, like: bool | None) -> None:
        """Like or dislike an image; ``None`` removes the mark."""
        self._walk.note(lambda session: session.mark(self._strip(key).group, name, like))

    def toggle(self, key: str, name: str, like: bool) -> None:
        """Like or dislike an image, or remove that mark if it is already set."""
        strip = self._strip(key)
        if name not in strip.files:
            raise Refused("this image is in a pair, or its prompt is done", hint="undo that first")
        self.mark(key, name, None if strip.mark(name) is like else like)

    def see(self, key: str, names: Sequence[str]) -> None:
        """Record that these images were on the screen long enough. Marks are kept."""
        strip = self._strip(key)
        left = [name for name in names if name in strip.files and strip.is_new(name)]
        if left:
            self._walk.note(lambda session: session.see(strip.group, left))

    def close(self, drawn: Mapping[str, Collection[str]]) -> None:
        """Finish these prompts: make pairs and move to the next ones.

        A single undo reverts all of it.

        Args:
            drawn: the images on the page, by group key. A prompt that has more images now stays, and so do
                those after it.

        Raises:
            Refused: the open prompt itself has more images now.
        """
        closed = 0
        for key in [group.key for group in self._groups()]:
            group = self._walk.group
            if group is None or group.key != key or key not in drawn:
                continue
            if not set(self._look(group).files) <= set(drawn[key]):
                if not closed:
                    raise Refused("more images of this prompt were found", hint="look at them first")
                break
            automatic = closed > 0
            self._walk.act(lambda session, automatic=automatic: session.close_marks(automatic))  # type: ignore[misc]
            closed += 1
