"""The votes of an arena in an append-only SQLite file. They are on disk before they are shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.util.errors import UserError
from modules.util.files.EventLog import EventLog, peek
from modules.util.jsonio import parse_json
from modules.util.owned_files import TEMPORARY, Owned, shown

SHOWN = "shown"
_OWN = re.compile(r"\d{5,}-(left|right)\.\w+")
_TEXTS = ("left", "right", "prompt")
DAMAGED = "if it is damaged, rename it: its votes are then lost"


@dataclass(frozen=True)
class Vote:
    """One answer about two images.

    Args:
        left, right: keys of the contestants.
        best: key of the preferred contestant; ``None`` for a tie or a skipped question.
        skipped: whether the question was skipped; it is not asked again.
    """

    left: str
    right: str
    prompt: str
    seed: int
    best: str | None = None
    skipped: bool = False


class VoteStore(EventLog):
    """The arena folder. Opening takes a lock; a second window gets a ``UserError``.

    Args:
        folder: the folder, created if missing.
    """

    FILE = "votes.sqlite"
    LOCK = ".votes.lock"
    WHAT = "a store of votes"
    VERSION = 1
    DAMAGED = DAMAGED

    def __init__(self, folder: Path) -> None:
        super().__init__(Owned(folder), folder.absolute())

    def _prepare(self) -> None:
        self._forget_shown()

    def _before_closing(self) -> None:
        with suppress(OSError):
            self._forget_shown()

    def _forget_shown(self) -> None:
        """Remove the images that were shown. Other files and the folder they are in stay."""
        place = self._owned.path(SHOWN)
        if not place.is_dir() or place.is_symlink():
            return
        self._owned.sweep(f"{SHOWN}/{TEMPORARY}")
        for name in sorted(path.name for path in place.iterdir()):
            if _OWN.fullmatch(name):
                self._owned.remove(f"{SHOWN}/{name}")
        if not any(place.iterdir()):
            self._owned.remove_tree(SHOWN)

    def _check_payload(self, kind: str, payload: dict[str, Any], where: str) -> None:
        _check(payload, where)

    def vote(self, made: Vote) -> None:
        """Make a vote durable."""
        first, second = sorted((made.left, made.right))
        self.append(f"{first} | {second}", "vote", vars(made))

    def votes(self) -> Iterator[Vote]:
        """The votes that are not undone, in order."""
        for event in self.events():
            yield _vote(event.payload)

    def show(self, image: Path, name: str) -> Path:
        """Give an image a name that does not reveal who made it, ``00012-left.png``, until the store is closed."""
        self._owned.take(image, f"{SHOWN}/{name}")
        return self.output_dir / SHOWN / name


def _check(payload: Mapping[str, Any], where: str) -> None:
    texts = all(isinstance(payload.get(name), str) for name in _TEXTS)
    best = payload.get("best")
    if not texts or type(payload.get("seed")) is not int or type(payload.get("skipped")) is not bool:
        raise UserError(f"{where} is not a vote", hint=DAMAGED)
    if best not in (None, payload["left"], payload["right"]) or payload["left"] == payload["right"]:
        raise UserError(f"{where} prefers something that was not shown", hint=DAMAGED)


def _vote(payload: Mapping[str, Any]) -> Vote:
    return Vote(**{name: payload[name] for name in Vote.__dataclass_fields__ if name in payload})


def read_votes(folder: Path) -> list[Vote]:
    """The votes of an arena, which may be open elsewhere; none if there is no arena."""
    path = folder / VoteStore.FILE
    rows = peek(path, "SELECT seq, payload FROM events WHERE undone = 0 ORDER BY seq")
    found = []
    for number, text in rows:
        where = f"{shown(path)}, event {number}"
        data = parse_json(text, f"payload of {where}") if isinstance(text, (str, bytes)) else None
        payload: dict[str, Any] = data if isinstance(data, dict) else {}
        _check(payload, where)
        found.append(_vote(payload))
    return found
