"""Questions of a run about its images and the answers of a person, in one append-only file.

The trainer appends questions, watchers append votes. Both flush a line to disk before they do anything else.
A vote is therefore kept whether or not the trainer is alive, and counts when the trainer reads it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.util.errors import UserError, refused_as
from modules.util.files.OpenFolder import read_plain
from modules.util.owned_files import Owned
from modules.util.pairs.source_files import MOST_SOURCES

FOLDER, RECORDS = "votes", "votes.jsonl"
MOST_BYTES = 64 * 1024 * 1024
MOST_IMAGES = 4096
_PLACE = re.compile(r"\d{1,9}-\d{1,9}")
_KEY = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Vote:
    """The vote on the images of one prompt so far.

    Args:
        likes, dislikes: indices of images, from 0.
        best: the image preferred to all others.
    """

    likes: tuple[int, ...] = ()
    dislikes: tuple[int, ...] = ()
    best: int | None = None
    done: bool = False

    def levels(self, count: int) -> tuple[int, ...]:
        """The level of each image: 2 best, 1 liked, 0 seen, -1 disliked."""
        made = [0] * count
        for number in self.likes:
            made[number] = 1
        for number in self.dislikes:
            made[number] = -1
        if self.best is not None:
            made[self.best] = 2
        return tuple(made)


@dataclass
class Question:
    """A question about the images of one prompt.

    Args:
        key: digest of the images, which votes refer to.
        place: ``<epoch>-<group>``, name of the folder of the images.
        images: number of images; their files are ``0.png`` and so on.
        sources: names of the images that the prompt edits; copies are next to the images, ``source-0.png`` and so on.
        open: whether a trainer is waiting for an answer.
        dropped: whether nobody answered in time.
    """

    key: str
    place: str
    prompt: str
    images: int
    sources: tuple[str, ...] = ()
    vote: Vote = Vote()
    open: bool = True
    dropped: bool = False

    @property
    def epoch(self) -> int:
        return int(self.place.partition("-")[0])

    @property
    def group(self) -> int:
        return int(self.place.partition("-")[2])

    @property
    def answered(self) -> bool:
        """True if the trainer no longer needs to wait."""
        return self.vote.done or self.dropped


class VoteBook:
    """The questions and votes of a run."""

    def __init__(self, run: str | os.PathLike[str]) -> None:
        self.folder = Path(run) / FOLDER
        self.questions: dict[str, Question] = {}
        self._read = 0

    def refresh(self) -> bool:
        """Read what was appended since the last call. Returns whether there was anything."""
        path = self.folder / RECORDS
        try:
            if path.stat().st_size == self._read:
                return False
            data = read_plain(path, MOST_BYTES)[self._read :]
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UserError(f"the votes in {self.folder} cannot be read: {error.strerror}") from error
        whole = data.rfind(b"\n") + 1
        self._read += whole
        for line in data[:whole].split(b"\n"):
            if line.strip():
                self._take(line)
        return bool(whole)

    def open_questions(self) -> list[Question]:
        """The questions a trainer is waiting for, in the order asked."""
        return [one for one in self.questions.values() if one.open and not one.answered]

    def at(self, place: str) -> Question | None:
        """The latest question about the images of a folder."""
        return next((one for one in reversed(self.questions.values()) if one.place == place), None)

    def image(self, question: Question, number: int) -> Path:
        """The file of an image."""
        return self.folder / question.place / f"{number}.png"

    def source(self, question: Question, number: int) -> Path:
        """The file of an image that the prompt edits."""
        return self.folder / question.place / source_file(number)

    # -- the trainer's side ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a trainer: questions of an earlier one are no longer open."""
        self._append({"begun": True})

    def ask(self, key: str, place: str, prompt: str, images: int, sources: Sequence[str] = ()) -> Question:
        """Ask about images that are on disk, with the sources of these names."""
        record: dict[str, Any] = {"asked": key, "place": place, "prompt": prompt, "images": images}
        self._append(record | ({"sources": list(sources)} if sources else {}))
        return self.questions[key]

    def drop(self, key: str) -> None:
        """Stop waiting for an answer."""
        self._append({"dropped": key})

    # -- the person's side -------------------------------------------------------------------------------------

    def give(self, key: str, vote: Vote) -> Question:
        """Save a vote to disk. A later vote replaces an earlier one until it is done.

        Raises:
            UserError: the question does not exist or was already answered, or the vote contradicts itself.
        """
        self.refresh()
        question = self.questions.get(key)
        if question is None:
            raise UserError(
                f"the run has no question {key!r}", hint="list the open questions: runctl.py RUN votes"
            )
        if question.answered:
            why = "nobody answered it in time" if question.dropped else "it was already answered"
            raise UserError(f"question {key} is closed: {why}", hint="answer an open one")
        if (fault := fault_of(vote, question.images)) is not None:
            raise UserError(f"question {key}: {fault}", hint=f"its images are 0 to {question.images - 1}")
        self._append(
            {
                "vote": key,
                "likes": vote.likes,
                "dislikes": vote.dislikes,
                "best": vote.best,
                "done": vote.done,
            }
        )
        return question

    # -- the file ----------------------------------------------------------------------------------------------

    def _append(self, record: Mapping[str, Any]) -> None:
        # a line break first, because a process that died while writing may have left an incomplete line
        line = b"\n" + json.dumps(record, allow_nan=False).encode("ascii") + b"\n"
        with refused_as(f"the votes in {self.folder} cannot be written", hint="free some space on the disk"):
            Owned(self.folder, local=True).append(RECORDS, line)
        self.refresh()

    def _take(self, line: bytes) -> None:
        """Add a record. Anything else is skipped."""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(record, dict):
            return
        if record.get("begun") is True:
            for one in self.questions.values():
                one.open = False
        elif _is_key(record.get("asked")):
            self._take_question(record)
        elif _is_key(record.get("dropped")) and record["dropped"] in self.questions:
            self.questions[record["dropped"]].dropped = True
        elif _is_key(record.get("vote")) and record["vote"] in self.questions:
            question = self.questions[record["vote"]]
            vote = _vote(record)
            if vote is not None and not question.answered and fault_of(vote, question.images) is None:
                question.vote = vote

    def _take_question(self, record: Mapping[str, Any]) -> None:
        key: str = record["asked"]
        place, prompt, images = record.get("place"), record.get("prompt"), record.get("images")
        if not isinstance(place, str) or not _PLACE.fullmatch(place) or not isinstance(prompt, str):
            return
        if type(images) is not int or not 2 <= images <= MOST_IMAGES:
            return
        sources = record.get("sources", [])
        if not isinstance(sources, list) or len(sources) > MOST_SOURCES:
            return
        if not all(isinstance(one, str) for one in sources):
            return
        for one in self.questions.values():
            if one.place == place:
                one.open = False
        before = self.questions.pop(key, None)
        made = Question(key, place, prompt, images, tuple(sources))
        if before is not None and before.place == place and before.images == images:
            # a trainer waits for an answer again, if nobody gave one in time before
            made.vote = before.vote
        self.questions[key] = made


def source_file(number: int) -> str:
    """The file of a source in the folder of a question's images."""
    return f"source-{number}.png"


def _is_key(value: object) -> bool:
    return isinstance(value, str) and _KEY.fullmatch(value) is not None


def _vote(record: Mapping[str, Any]) -> Vote | None:
    likes, dislikes, best = record.get("likes"), record.get("dislikes"), record.get("best")
    if not isinstance(likes, list) or not isinstance(dislikes, list) or type(record.get("done")) is not bool:
        return None
    return Vote(tuple(likes), tuple(dislikes), best, record["done"])


def fault_of(vote: Vote, images: int) -> str | None:
    """The fault of a vote on ``images`` images, or ``None``."""
    numbers: Sequence[object] = (*vote.likes, *vote.dislikes, *(() if vote.best is None else (vote.best,)))
    for one in numbers:
        if type(one) is not int or not 0 <= one < images:
            return f"there is no image {one!r}"
    if set(vote.likes) & set(vote.dislikes):
        return "an image is both liked and disliked"
    if vote.best in vote.dislikes:
        return "the best image is disliked"
    return None
