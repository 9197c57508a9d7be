"""The base of all ways of choosing: texts and keys, questions, and the stopping rule.

A new way is one file in this folder. The start page, the choosing page, the line protocol, the command line
and the simulation find it in the registry. ``CurationMode`` consists of the registered keys.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import takewhile
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np

from modules.curation.ranking import ELO_START, Comparison, Floats, Posterior, bradley_terry
from modules.curation.standing import Answer, Distance, Situation, Standing, all_comparisons
from modules.util.Registry import Registry

DEFAULT_THRESHOLD = 0.95
DEFAULT_SHARE = 0.8
"""Asking also continues until the pair is expected to have this share of the possible quality gap."""

SMALL_DIFFERENCE = 1.5
APART = 0.05
"""Images count as equal once the probability that any two differ by more than ``SMALL_DIFFERENCE`` logits
(the better one is preferred in 82 of 100 answers) is below ``APART``.
"""

TIES_PER_IMAGE = 40
ANSWERS_PER_IMAGE = 100
"""Limit, per image, of consecutive ties or of answers, at which asking ends in any case."""


class AnswerKind(Enum):
    """Kinds of answers about the images of a question. They determine the verbs of session and protocol."""

    COMPARE = "compare"
    """One is best (and one worst), or they are equal, or the question is skipped: ``answer``, ``pick`` and
    the ranking.
    """
    CHOOSE = "choose"
    """Two images are chosen as the pair: ``choose``."""
    JUDGE = "judge"
    """Each image is good, bad or neither, one at a time: ``judge``."""
    MARK = "mark"
    """Images of many prompts are liked or disliked in any order: ``mark``, ``see`` and ``close``."""


class Layout(Enum):
    """Layouts of the images of a question."""

    IMAGES = "images"
    """Large, next to each other, with zoom."""
    GRID = "grid"
    """As thumbnails with a cursor."""
    SHEET = "sheet"
    """As thumbnails of several prompts in sections, with a cursor."""


class Answering(Protocol):
    """Actions of keys on a question about two images."""

    def better(self, place: int) -> None:
        """Of two images, the one at ``place`` is better."""

    def equal(self) -> None:
        """The images are equally good."""

    def poor(self) -> None:
        """The images are equally poor."""

    def skip(self) -> None:
        """Skip the question."""


class Board(Answering, Protocol):
    """Actions of keys on any question on the screen."""

    def only_best(self) -> None:
        """Answer with the image marked as best and no worst one."""

    def mark_best(self) -> None:
        """Mark the image under the cursor as the best."""

    def mark_worst(self) -> None:
        """Mark the image under the cursor as the worst."""

    def judge(self, good: bool | None) -> None:
        """Rate the image as good, bad, or neither."""

    def like(self) -> None:
        """Like the image under the cursor. Calling it again removes the mark."""

    def dislike(self) -> None:
        """Dislike the image under the cursor. Calling it again removes the mark."""

    def next_prompt(self) -> None:
        """Finish this prompt."""


Asked = TypeVar("Asked", bound=Answering, contravariant=True)


@dataclass(frozen=True)
class Key(Generic[Asked]):
    """An action with a key and a button.

    Args:
        label: text of the button.
        keys: Tk key names; the first is shown on the button.
        do: performs the action.
        main: it is the most frequent action.
        judges: it rates the images, so they must be on the screen.
        queues: its meaning does not depend on the previous answer, so it need not wait until that is saved.
    """

    label: str
    keys: tuple[str, ...]
    do: Callable[[Asked], None]
    main: bool = False
    judges: bool = False
    queues: bool = False


@dataclass(frozen=True)
class Settled:
    """The decision to stop asking about a group.

    Args:
        pairs: (chosen, rejected) images to export; without any, the group ends as it is.
        note: why it ends without a pair, in one sentence.
    """

    pairs: Sequence[tuple[int, int]] = ()
    note: str = ""


class WayOfChoosing(ABC):
    """A way of asking a person for the pairs of a group. It has no state."""

    order: ClassVar[int]
    """Position in lists of all ways. The first one is the default."""
    title: ClassVar[str]
    text: ClassVar[str]
    """One line for the start page: what is shown, and when the pair is saved."""
    kind: ClassVar[AnswerKind]
    layout: ClassVar[Layout] = Layout.IMAGES
    stops_when_certain: ClassVar[bool] = False
    """True if a pair is saved once it reaches the requested certainty."""
    needs_fit: ClassVar[bool] = True
    """True if questions and ratings need the Bradley-Terry fit; otherwise the simulation skips it."""

    @property
    def compares(self) -> bool:
        """True if its answers give a ranking."""
        return self.kind is AnswerKind.COMPARE

    @abstractmethod
    def keys(self, images: int) -> tuple[Key[Board], ...]:
        """The actions available for a question of this many images."""

    @abstractmethod
    def hint(self, situation: Situation, images: int) -> str:
        """The question to the person, in one line, for this many images."""

    @abstractmethod
    def question(self, situation: Situation, rng: random.Random) -> tuple[int, ...]:
        """The images of the next question, in screen order; ``()`` if there is nothing left to ask."""

    def settle(self, situation: Situation, threshold: float, distance: Distance) -> Settled | None:
        """The result of the last answer, or of having no question left: pairs, the end, or ``None`` to keep
        asking.

        Args:
            threshold: certainty at which a pair is saved, between 0.5 and 1.
            distance: visual distance of two images.
        """
        return None

    def ratings(self, count: int, comparisons: Sequence[Comparison], posterior: Posterior) -> Floats:
        """Ratings (``count``,) on the Elo scale, for display and sorting."""
        return np.asarray(ELO_START + posterior.mean * (400.0 / np.log(10.0)), dtype=np.float64)

    def standing(self, count: int, answers: Sequence[Answer], fit: bool = True) -> Standing:
        """Compute ratings and posterior of ``count`` images from ``answers``.

        Args:
            fit: ``False`` keeps the posterior at its prior.
        """
        comparisons = all_comparisons(answers)
        posterior = bradley_terry(count, comparisons if fit else [])
        shown = [0] * count
        for answer in answers:
            for image in answer.places:
                shown[image] += 1
        return Standing(self.ratings(count, comparisons, posterior), posterior, tuple(shown))


class Comparing(WayOfChoosing):
    """A way that shows some images at a time and ranks all of them from the answers."""

    kind = AnswerKind.COMPARE

    def question(self, situation: Situation, rng: random.Random) -> tuple[int, ...]:
        """The next images in random order, so that a preference for one side can be measured and favours no image."""
        images = sorted(situation.alive)
        if len(images) < 2:
            return ()
        chosen = self.next_images(situation, images, rng)
        rng.shuffle(chosen)
        return tuple(chosen)

    @abstractmethod
    def next_images(self, situation: Situation, images: list[int], rng: random.Random) -> list[int]:
        """The images of the next question in any order. ``images`` has at least two, sorted."""

    def settle(self, situation: Situation, threshold: float, distance: Distance) -> Settled | None:
        return _settle_when_certain(situation, threshold) if self.stops_when_certain else None

    def keys(self, images: int) -> tuple[Key[Board], ...]:
        return KEYS_OF_TWO if images <= 2 else KEYS_OF_MORE

    def hint(self, situation: Situation, images: int) -> str:
        return "Which image is better?" if images <= 2 else f"1-{images}: first the best, then the worst"


KEYS_OF_TWO: tuple[Key[Answering], ...] = (
    Key("Left is better", ("Left", "KP_Left"), lambda board: board.better(0), True, True),
    Key("Right is better", ("Right", "KP_Right"), lambda board: board.better(1), True, True),
    Key("Tie", ("Up", "KP_Up"), lambda board: board.equal(), judges=True),
    Key("Both bad", ("b",), lambda board: board.poor(), judges=True),
    Key("Skip", ("Down", "space", "KP_Down"), lambda board: board.skip()),
)
KEYS_OF_MORE: tuple[Key[Board], ...] = (
    Key("Tie", ("Up", "KP_Up"), lambda board: board.equal(), judges=True),
    Key("All bad", ("b",), lambda board: board.poor(), judges=True),
    Key("Skip", ("Down", "space", "KP_Down"), lambda board: board.skip()),
    Key("Only the best", ("Return", "KP_Enter"), lambda board: board.only_best(), judges=True),
)
"""Digits and clicks on the images mark the best and the worst."""

WAYS: Registry[WayOfChoosing] = Registry("way of choosing", "modules.curation.choosing")


@cache
def ways() -> dict[str, WayOfChoosing]:
    """All ways by key, in list order."""
    return dict(sorted(WAYS.items(), key=lambda item: item[1].order))


def is_settled(standing: Standing, alive: Sequence[int], threshold: float = DEFAULT_THRESHOLD) -> bool:
    """Return whether asking can stop: all images were shown, best over worst is certain enough, and a
    better best or a worse worst would gain little.

    The limit of this gain is ``DEFAULT_SHARE`` of the possible gap at the default threshold, and scales with
    the threshold.
    """
    if len(alive) < 2 or not all(standing.shown[i] for i in alive) or standing.certainty(alive) < threshold:
        return False
    return standing.expected_share(alive) >= DEFAULT_SHARE * (threshold - 0.5) / (DEFAULT_THRESHOLD - 0.5)


def look_equal(situation: Situation) -> bool:
    """Return whether further questions are futile: hardly any two images differ by more than a little according to
    the answers, or very many answers had no effect.
    """
    alive, standing = situation.alive, situation.standing
    if len(alive) < 2 or not all(standing.shown[i] for i in alive):
        return False
    if standing.posterior.probability_apart(alive, SMALL_DIFFERENCE) < APART:
        return True
    images = set(alive)
    answers = [a for a in situation.answers if images.issuperset(a.places) and not a.skipped]
    ties = list(takewhile(lambda answer: answer.tie or answer.both_bad, reversed(answers)))
    return len(ties) >= TIES_PER_IMAGE * len(alive) or len(answers) >= ANSWERS_PER_IMAGE * len(alive)


def _settle_when_certain(situation: Situation, threshold: float) -> Settled | None:
    """The best over the worst once that is certain enough, or no pair once the images count as equal."""
    if is_settled(situation.standing, situation.alive, threshold):
        order = situation.standing.order(situation.alive)
        return Settled([(order[0], order[-1])])
    return Settled(note="These look equal: no pair was saved.") if look_equal(situation) else None
