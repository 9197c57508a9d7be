"""Chooses which two images are compared next, and processes answers. It is blind: which contestant made which
image stays hidden until the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from modules.arena.Contestant import Contestant, Question
from modules.arena.davidson import all_pairs
from modules.arena.tally import Tally
from modules.arena.VoteStore import Vote, VoteStore
from modules.util.errors import DataError, UserError
from modules.util.rng import python_random

USUAL_VOTES = 200


class Ending(Enum):
    """The reason why there is no further question."""

    DECIDED = "decided"
    ENOUGH_VOTES = "votes"
    NO_IMAGES = "images"


def check_different(keys: Sequence[str]) -> None:
    """Raise ``DataError`` unless these are the keys of two different contestants or more."""
    if len(keys) < 2 or len(set(keys)) < len(keys):
        raise DataError("comparing needs two different contestants or more", "--between", "name each once")


@dataclass(frozen=True)
class Ballot:
    """An open question.

    Args:
        left, right: the contestants, by index.
        sources: what both images were made from, if they are edits.
    """

    left: int
    right: int
    prompt: str
    seed: int
    show: tuple[Path, Path]
    sources: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Voted:
    """A past vote.

    Args:
        first, second: the two images, in contestant order.
        best: 0 or 1 for the preferred one, ``None`` for a tie.
    """

    prompt: str
    first: Path
    second: Path
    best: int | None


class Arena:
    """Asks about images of contestants until it is decided which is preferred.

    Every answer is on disk before the method returns. The open question depends only on the votes and the
    seed, so that a killed arena asks the same question again.

    Args:
        store: the open store; also holds the neutral names of shown images.
        contestants: two or more, with images of the same prompts and seeds.
        seed: seed of sides and orders.
        most_votes: stop undecided after this many votes among these contestants.
        may_ask: prompts that may be used for judging; all by default.

    Raises:
        DataError: two contestants are the same, or have no prompt and seed in common.
    """

    def __init__(
        self,
        store: VoteStore,
        contestants: Sequence[Contestant],
        seed: int = 42,
        most_votes: int = USUAL_VOTES,
        may_ask: Callable[[str], bool] = lambda prompt: True,
    ) -> None:
        self.store = store
        self.contestants = tuple(contestants)
        self._keys = [one.key for one in contestants]
        self._seed, self._most_votes = seed, most_votes
        check_different(self._keys)
        self._questions: dict[tuple[int, int], list[Question]] = {}
        for pair in all_pairs(len(contestants)):
            first, second = (contestants[i] for i in pair)
            both = sorted(q for q in first.images.keys() & second.images.keys() if may_ask(q[0]))
            if not both:
                raise DataError(
                    f"{first.name} and {second.name} have no image of the same prompt and seed",
                    "--between",
                    "make images with both, for the same prompts and seeds",
                )
            self._questions[pair] = both
        self._state()

    def _state(self) -> None:
        votes = list(self.store.votes())
        self._asked = len(votes)
        self.tally = Tally([one.name for one in self.contestants], self._keys, votes)
        done: dict[tuple[int, int], set[Question]] = {pair: set() for pair in self._questions}
        themes: Counter[str] = Counter()
        for vote in votes:
            if vote.left in self._keys and vote.right in self._keys:
                low, high = sorted((self._keys.index(vote.left), self._keys.index(vote.right)))
                done[low, high].add((vote.prompt, vote.seed))
                themes[self.contestants[low].theme((vote.prompt, vote.seed))] += 1
        self._left = {
            pair: [q for q in questions if q not in done[pair] and self._is_there(pair, q)]
            for pair, questions in self._questions.items()
        }
        self.ballot: Ballot | None = None  # if the next question cannot be shown, the last one is not asked twice
        if self.ending is None:
            self.ballot = self._next(themes)

    def _is_there(self, pair: tuple[int, int], question: Question) -> bool:
        """Return whether both images still exist."""
        return all(self.contestants[i].images[question].is_file() for i in pair)

    def voted(self) -> list[Voted]:
        """The votes among these contestants, in order, without skips. They reveal who made which image."""
        found = []
        for vote in self.store.votes():
            if vote.skipped or vote.left not in self._keys or vote.right not in self._keys:
                continue
            pair = sorted((self._keys.index(vote.left), self._keys.index(vote.right)))
            question = (vote.prompt, vote.seed)
            images = [self.contestants[i].images.get(question) for i in pair]
            if images[0] is not None and images[1] is not None:
                best = None if vote.best is None else int(vote.best == self._keys[pair[1]])
                found.append(Voted(vote.prompt, images[0], images[1], best))
        return found

    @property
    def left(self) -> int:
        """Number of questions that can still be asked."""
        return sum(len(questions) for questions in self._left.values())

    @property
    def ending(self) -> Ending | None:
        """The reason why there is no further question; ``None`` while there is one."""
        if self.tally.winner is not None:
            return Ending.DECIDED
        if self.tally.votes >= self._most_votes:
            return Ending.ENOUGH_VOTES
        return None if self._askable() else Ending.NO_IMAGES

    def _askable(self) -> list[tuple[int, int]]:
        return [pair for pair, questions in self._left.items() if questions and self.tally.is_open(pair)]

    def _next(self, themes: Counter[str]) -> Ballot:
        """The question after ``self._asked`` votes: the chosen pair, with one of the least used prompts or edits."""
        rng = python_random("arena-question", self._seed, self._asked)
        pair = self.tally.next_pair(self._askable())
        theme = self.contestants[pair[0]].theme
        fewest = min(themes[theme(question)] for question in self._left[pair])
        prompt, seed = rng.choice([q for q in self._left[pair] if themes[theme(q)] == fewest])
        left, right = pair if rng.random() < 0.5 else pair[::-1]
        show = [
            self.store.show(image, f"{self._asked:05d}-{side}{image.suffix.lower()}")
            for side, image in (
                ("left", self.contestants[left].images[prompt, seed]),
                ("right", self.contestants[right].images[prompt, seed]),
            )
        ]
        sources = self.contestants[left].sources.get((prompt, seed), ())
        return Ballot(left, right, prompt, seed, (show[0], show[1]), tuple(sources))

    def answer(self, side: int | None, skipped: bool = False) -> None:
        """Answer the open question.

        Args:
            side: 0 for left, 1 for right, ``None`` for a tie.
            skipped: whether to skip the question, which then does not count and is not asked again.

        Raises:
            UserError: there is no open question.
        """
        ballot = self.ballot
        if ballot is None:
            raise UserError("there is no open question", hint="undo takes the last vote back")
        left, right = self._keys[ballot.left], self._keys[ballot.right]
        best = None if side is None else (left, right)[side]
        self.store.vote(Vote(left, right, ballot.prompt, ballot.seed, best, skipped))
        self._state()

    def undo(self) -> None:
        """Undo the last vote among these contestants.

        Raises:
            UserError: there is no vote.
        """
        if self.store.undo_last(stays=lambda event: not self._concerns(event.payload)) is None:
            raise UserError("there is nothing to undo")
        self._state()

    def _concerns(self, vote: Mapping[str, Any]) -> bool:
        return vote["left"] in self._keys and vote["right"] in self._keys
