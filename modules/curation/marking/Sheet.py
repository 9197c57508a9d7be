"""Several prompts on one page: the open one of a walk and those that come next."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from modules.curation.group_state import GroupState
from modules.curation.GroupWalk import GroupWalk
from modules.curation.ImageGroup import ImageGroup
from modules.curation.session import Refused

PROMPTS = 12
"""On one page; as many as a search gets ready."""


@dataclass(frozen=True)
class Strip:
    """One prompt of a page, and what was said of its images."""

    group: ImageGroup
    state: GroupState

    @property
    def files(self) -> list[str]:
        """The images that can be marked, in the order of the page."""
        return [self.group.files[i] for i in self.state.question]

    def mark(self, name: str) -> bool | None:
        """What was said of an image."""
        return self.state.situation.verdicts.get(self.group.files.index(name))

    def is_new(self, name: str) -> bool:
        """Whether an image was neither marked nor seen."""
        return self.group.files.index(name) not in self.state.situation.verdicts


class Sheet:
    """The prompts of a page. Images are named by the key of their group and their file.

    Args:
        walk: goes through the groups; the marks of those that come next are kept before they are opened.
    """

    def __init__(self, walk: GroupWalk) -> None:
        self._walk = walk

    def strips(self) -> tuple[Strip, ...]:
        """The prompts of the page, the open one first; none where no prompt is open."""
        return tuple(map(self._look, self._groups()))

    def _groups(self) -> list[ImageGroup]:
        """Each prompt once: one that was found again with more images waits to be handed out while it is open."""
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
        """Like or dislike an image; ``None`` takes the mark off."""
        self._walk.note(lambda session: session.mark(self._strip(key).group, name, like))

    def toggle(self, key: str, name: str, like: bool) -> None:
        """Like or dislike an image, or take that very mark off again."""
        strip = self._strip(key)
        if name not in strip.files:
            raise Refused("this image is in a pair, or its prompt is done", hint="undo that first")
        self.mark(key, name, None if strip.mark(name) is like else like)

    def see(self, key: str, names: Sequence[str]) -> None:
        """These were on the screen long enough; those about which something was said stay as they are."""
        strip = self._strip(key)
        left = [name for name in names if name in strip.files and strip.is_new(name)]
        if left:
            self._walk.note(lambda session: session.see(strip.group, left))

    def close(self, drawn: Mapping[str, Collection[str]]) -> None:
        """There is no more to mark in these prompts: pairs are made, the next ones come.

        One undo takes all of it back.

        Args:
            drawn: the images that were on the page, by the key of their group. A prompt that has further images by now
                stays, and so do those after it.

        Raises:
            Refused: already the open prompt has further images.
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
