"""Likes, dislikes and seen images of a folder: counts, a list, and what a taste can learn from them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modules.util.errors import UserError
from modules.util.files.EventLog import Event
from modules.util.jsonio import read_json, write_json
from modules.util.owned_files import shown

log = logging.getLogger(__name__)

MOST_FOR_ONE = 3
"""Maximum number of comparisons made from one mark."""
LIKES_NAME = "likes.json"
WHY = "marked in the grid"
"""The source of marks set in the grid."""
NAMES: dict[bool | None, str] = {True: "like", False: "dislike"}


@dataclass(frozen=True)
class Preferred:
    """One image preferred over another; ``prompt`` is that of ``better``.

    Args:
        weight: number of marks it represents. The comparisons of one mark share its weight of 1. They are
            right or wrong together, so that a slip would otherwise count several times.
    """

    better: str
    worse: str
    prompt: str
    worse_prompt: str
    weight: float = 1.0


@dataclass(frozen=True)
class _Prompt:
    """The images of one group by mark."""

    prompt: str
    liked: Sequence[str]
    disliked: Sequence[str]
    seen: Sequence[str]

    @classmethod
    def of(cls, prompt: str, said: Mapping[str, bool | None]) -> _Prompt:
        kinds = ([name for name, one in said.items() if one is like] for like in (True, False, None))
        return cls(prompt, *kinds)


class Marks:
    """The marks of all groups, by group and file."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._said: dict[str, dict[str, bool | None]] = {}
        self._prompts: dict[str, str] = {}
        for event in events:
            self.take(event)

    def take(self, event: Event) -> None:
        """Process the next event. Events of other ways of choosing are ignored."""
        key, data = event.group_key, event.payload
        if event.kind == "mark":
            self._said.setdefault(key, {})[data["file"]] = data["like"]
            self._prompts[key] = data["prompt"]
        elif event.kind == "seen":
            for name in data["files"]:
                self._said.setdefault(key, {}).setdefault(name, None)
            self._prompts[key] = data["prompt"]
        elif event.kind == "gone":
            for name in data["files"]:
                self._said.get(key, {}).pop(name, None)

    def count(self, like: bool | None) -> int:
        """Number of images liked, disliked, or only seen (``None``)."""
        return sum(list(said.values()).count(like) for said in self._said.values())

    @property
    def judged(self) -> int:
        """Number of images looked at, with or without a mark."""
        return sum(map(len, self._said.values()))

    def groups(self) -> set[str]:
        """Groups with any liked or disliked image."""
        return {key for key, said in self._said.items() if any(like is not None for like in said.values())}

    def listed(self) -> list[dict[str, str]]:
        """Every like and dislike: ``file``, ``prompt``, ``mark`` and ``why``, in the format of an import of
        favourites.
        """
        return [
            {"file": name, "prompt": self._prompts[key], "mark": NAMES[like], "why": WHY}
            for key, said in self._said.items()
            for name, like in said.items()
            if like is not None
        ]

    def write(self, folder: Path) -> None:
        """Write them to ``likes.json`` in a folder of pairs. Without marks, no file is written.

        Marks of an import that was told to list them there stay in the file, and a file that lists no marks is left
        alone.
        """
        listed, file = self.listed(), folder / LIKES_NAME
        before = _marks_in(file)
        if before is None:
            log.warning("%s is not a list of likes: it is left as it is, and yours are not written", shown(file))
            return
        made = [*(one for one in before if one.get("why") != WHY), *listed]
        if made != before:
            write_json(file, made)

    def comparisons(self) -> list[Preferred]:
        """The comparisons for learning a taste: within a prompt, likes beat all others, and seen images beat
        dislikes.

        Images are compared across prompts only if their own prompt has nothing to compare a mark with.
        """
        prompts = [_Prompt.of(self._prompts[key], said) for key, said in self._said.items()]
        liked = [(name, one.prompt) for one in prompts for name in one.liked]
        others = [(name, one.prompt) for one in prompts for name in (*one.disliked, *one.seen)]
        found = [made for one in prompts for made in _compare(one, liked, others)]
        marked = {name for one in prompts for name in (*one.liked, *one.disliked)}
        uses = Counter(name for made in found for name in marked.intersection((made.better, made.worse)))
        return [
            replace(made, weight=sum(1 / uses[name] for name in (made.better, made.worse) if name in uses))
            for made in found
        ]


def _marks_in(file: Path) -> list[dict[str, Any]] | None:
    """The marks that a file lists; none without a file, ``None`` if it is something else."""
    if not file.is_file():
        return []
    try:
        data = read_json(file, "list of likes")
    except UserError:
        return None
    good = isinstance(data, list) and all(isinstance(one, dict) and "mark" in one for one in data)
    return data if good else None


Named = tuple[str, str]


def _compare(one: _Prompt, liked: Sequence[Named], others: Sequence[Named]) -> Iterator[Preferred]:
    worse = [(name, one.prompt) for name in (*one.disliked, *one.seen)]
    for place, name in enumerate(one.liked):
        for other, prompt in _some(worse or others, place, len(one.disliked) if worse else 0):
            yield Preferred(name, other, one.prompt, prompt)
    better = [] if one.liked else [(name, one.prompt) for name in one.seen] or liked
    for place, name in enumerate(one.disliked):
        for other, prompt in _some(better, place, 0):
            yield Preferred(other, name, prompt, one.prompt)


def _some(names: Sequence[Named], place: int, first: int) -> list[Named]:
    """The first ``first`` names, then a few others that start elsewhere for every ``place``."""
    sure, rest = names[:first], names[first:]
    turn = place * MOST_FOR_ONE % len(rest) if rest else 0
    return [*sure, *rest[turn:], *rest[:turn]][:MOST_FOR_ONE]
