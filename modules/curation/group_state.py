"""The state of a group, as the fold of its events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from modules.curation.choosing.base import DEFAULT_THRESHOLD, AnswerKind
from modules.curation.CurationMode import DEFAULT_MODE, CurationMode
from modules.curation.finished import REOPENING, GroupRecord
from modules.curation.ImageGroup import ImageGroup
from modules.curation.standing import Answer, Situation, Standing
from modules.util.errors import UserError
from modules.util.files.EventLog import Event
from modules.util.rng import python_random


class Phase(Enum):
    """Phase of a group."""

    QUESTION = "question"
    CONTINUE = "continue"
    DONE = "done"


@dataclass(frozen=True)
class SessionSettings:
    """Settings of a session.

    Args:
        mode: the way of choosing.
        pairs_per_group: after this many pairs the group asks whether to continue.
        threshold: certainty at which ways that save automatically do so.
        seed: seed of screen positions and of the order of questions.
    """

    mode: CurationMode = DEFAULT_MODE
    pairs_per_group: int = 1
    threshold: float = DEFAULT_THRESHOLD
    seed: int = 42

    def __post_init__(self) -> None:
        if self.pairs_per_group < 1:
            raise UserError(
                f"{self.pairs_per_group} is too small", field="pairs_per_group", hint="use 1 or more"
            )
        if not 0.5 < self.threshold < 1.0:
            raise UserError(f"the certainty {self.threshold} is not between 0.5 and 1", field="threshold")


@dataclass
class GroupState:
    """A group after folding its events. Indices are positions in ``ImageGroup.files``.

    Args:
        question: the images of the open question, in screen order.
        situation: the result of the answers so far.
        certainty: probability that the best image really is better than the worst.
        pairs: number of pairs from the group.
        pairs_target: number of pairs after which it asks whether to continue.
        events: number of its events; a new one means a new question.
        again: why a finished group is shown again; empty if it was not finished.
    """

    phase: Phase
    question: tuple[int, ...]
    situation: Situation
    certainty: float
    pairs: int
    pairs_target: int
    events: int = 0
    again: str = ""

    @property
    def alive(self) -> list[int]:
        """The images that are in no pair."""
        return list(self.situation.alive)

    @property
    def answers(self) -> Sequence[Answer]:
        """The answers to questions that compare images."""
        return self.situation.answers

    @property
    def standing(self) -> Standing:
        """The ranking."""
        return self.situation.standing


class _Fold:
    """Folds the events of a group one by one."""

    def __init__(self, group: ImageGroup, settings: SessionSettings) -> None:
        self._group, self._settings = group, settings
        self._index = {name: i for i, name in enumerate(group.files)}
        self._record = GroupRecord()
        self.alive = dict.fromkeys(range(len(group.files)))
        self.answers: list[Answer] = []
        self.verdicts: dict[int, bool | None] = {}
        self.closed = False
        self.target = settings.pairs_per_group
        self.phase = Phase.QUESTION
        self.again = ""
        self._kinds: dict[str, Callable[[dict[str, Any]], None]] = {
            "answer": self._answer,
            "judge": self._judge,
            "mark": self._mark,
            "seen": self._seen,
            "close": self._close,
            "pick": self._pick,
            "go_on": self._go_on,
            "reopen": self._reopen,
            "gone": self._gone,
            "done": self._done,
        }

    @property
    def done(self) -> bool:
        """True if the group was finished and nothing came after that."""
        return self._record.done

    @property
    def pairs(self) -> int:
        """Number of pairs so far."""
        return self._record.pairs

    def take(self, event: Event) -> None:
        if self._record.done and event.kind in REOPENING:
            self.come_again()
            self.phase = Phase.QUESTION
        self._record.take(event)
        if event.kind in self._kinds:
            self._kinds[event.kind](event.payload)

    def come_again(self) -> None:
        """Show the finished group again if there is a reason, until it has the wanted number of pairs."""
        per_group = self._settings.pairs_per_group
        self.again = self._record.why_again(self._group.files, per_group)
        more = not self.again or self._record.new_images(self._group.files)
        self.target = self.pairs + per_group if more else per_group
        if self.again:
            self.phase, self.closed = Phase.QUESTION, False

    def _answer(self, data: dict[str, Any]) -> None:
        answer = _read_answer(data, self._index)
        self.answers += [answer] if answer is not None else []

    def _judge(self, data: dict[str, Any]) -> None:
        if data["file"] in self._index:
            self.verdicts[self._index[data["file"]]] = data["good"]

    def _mark(self, data: dict[str, Any]) -> None:
        """Apply a mark. An image whose mark is removed counts as seen."""
        if data["file"] in self._index:
            self.verdicts[self._index[data["file"]]] = data["like"]
        self.closed = False

    def _seen(self, data: dict[str, Any]) -> None:
        for name in data["files"]:
            if name in self._index:
                self.verdicts.setdefault(self._index[name], None)

    def _close(self, data: dict[str, Any]) -> None:
        self.closed = True

    def _pick(self, data: dict[str, Any]) -> None:
        for name in data["used"]:
            self.alive.pop(self._index.get(name, -1), None)
        enough = self.pairs >= self.target and len(self.alive) > 1
        self.phase = Phase.CONTINUE if enough else Phase.QUESTION

    def _go_on(self, data: dict[str, Any]) -> None:
        self.target, self.phase = self.pairs + self._settings.pairs_per_group, Phase.QUESTION
        self.closed = False

    def _reopen(self, data: dict[str, Any]) -> None:
        self._go_on(data)
        if self._settings.mode.way.kind is AnswerKind.JUDGE:
            self.verdicts.clear()

    def _gone(self, data: dict[str, Any]) -> None:
        """Drop what was said of a file that disappeared or was replaced. It does not apply to a new file of
        that name.
        """
        gone = {self._index[name] for name in data["files"] if name in self._index}
        self.answers = [answer for answer in self.answers if not gone.intersection(answer.places)]
        for index in gone:
            self.verdicts.pop(index, None)

    def _done(self, data: dict[str, Any]) -> None:
        self.phase, self.again = Phase.DONE, ""


def fold(group: ImageGroup, settings: SessionSettings, events: Sequence[Event]) -> GroupState:
    """The state of a group after its events."""
    made = _Fold(group, settings)
    for event in events:
        made.take(event)
    if made.done:
        made.come_again()
    if len(made.alive) < 2:
        made.phase = Phase.DONE
    way = settings.mode.way
    place = way.standing(len(group.files), made.answers)
    wanted = max(1, made.target - made.pairs)
    situation = Situation(place, tuple(made.alive), made.answers, made.verdicts, wanted, made.closed)
    question: tuple[int, ...] = ()
    if made.phase is Phase.QUESTION:
        rng = python_random("curation-question", settings.seed, group.key, len(events))
        question = way.question(situation, rng)
    certainty = place.certainty(situation.alive)
    return GroupState(
        made.phase, question, situation, certainty, made.pairs, made.target, len(events), made.again
    )


def _read_answer(data: dict[str, Any], index: dict[str, int]) -> Answer | None:
    """An answer from the log; ``None`` if one of its images no longer exists."""
    names = [*data["places"], *(n for n in (data["best"], data["worst"]) if n is not None)]
    if any(name not in index for name in names):
        return None
    best, worst = (None if data[k] is None else index[data[k]] for k in ("best", "worst"))
    return Answer(tuple(index[n] for n in data["places"]), best, worst, data["tie"], data["both_bad"])
