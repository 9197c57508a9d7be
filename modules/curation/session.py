"""A picking session as a state machine: which question is open, what an answer does, what undo takes back.

Nothing here draws. A view shows ``session.state()`` and calls the verbs; every verb is on the disk before
it returns, and the state is always the fold of the store's events, so a session that was killed goes on
where it was.

Phases of a group::

    QUESTION  -> answer / skip / pick_now / choose (SELECT) / judge (TRIAGE)
    CONTINUE  -> go_on (keep scoring this prompt) / finish_group / undo ("cancel": takes the pick back)
    DONE      -> the next group
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from modules.curation.choosing import (
    DEFAULT_THRESHOLD,
    Answer,
    Standing,
    ask,
    is_settled,
    pools_to_pairs,
    ranked_pairs,
    standing,
)
from modules.curation.store import CurationStore, Event
from modules.util.dpo_curation_util import Pair
from modules.util.enum.CurationMode import CurationMode
from modules.util.errors import UserError
from modules.util.rng import python_random


class Phase(Enum):
    """Where a group stands."""

    QUESTION = "question"
    CONTINUE = "continue"
    DONE = "done"


@dataclass(frozen=True)
class ImageGroup:
    """The images of one prompt and one shape.

    Args:
        key: stable name of the group.
        prompt: normalised prompt, the caption of its pairs.
        aspectratio: name of the aspect bucket.
        root: the source folder.
        files: image paths relative to ``root``, with ``/`` separators.
    """

    key: str
    prompt: str
    aspectratio: str
    root: Path
    files: tuple[str, ...]

    def path(self, index: int) -> Path:
        """Absolute path of one image."""
        return self.root / self.files[index]


@dataclass(frozen=True)
class SessionSettings:
    """How to choose.

    Args:
        mode: the way of choosing.
        pairs_per_group: after so many pairs the group asks whether to go on.
        threshold: SMART and FOUR-UP export by themselves at this certainty.
        seed: of places on the screen and of the order of questions.
    """

    mode: CurationMode = CurationMode.SMART
    pairs_per_group: int = 1
    threshold: float = DEFAULT_THRESHOLD
    seed: int = 42

    def __post_init__(self) -> None:
        if self.pairs_per_group < 1:
            raise UserError(f"{self.pairs_per_group} is not a number of pairs", field="pairs_per_group")
        if not 0.5 < self.threshold < 1.0:
            raise UserError(f"the certainty {self.threshold} is not between 0.5 and 1", field="threshold")


@dataclass
class GroupState:
    """A group after folding its events. Indices are positions in ``ImageGroup.files``."""

    phase: Phase
    question: tuple[int, ...]
    alive: list[int]
    answers: list[Answer]
    standing: Standing
    certainty: float
    pairs: int
    pairs_target: int
    good: list[int] = field(default_factory=list)
    bad: list[int] = field(default_factory=list)
    events: int = 0


class CurationSession:
    """One group after another, each event durable.

    Args:
        store: the open store of the output folder.
        settings: how to choose.
        distance: visual distance of two image files, for pairing in TRIAGE; 0 for all when absent.
    """

    def __init__(
        self,
        store: CurationStore,
        settings: SessionSettings,
        distance: Callable[[Path, Path], float] | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self._distance = distance
        self._group: ImageGroup | None = None
        self._state: GroupState | None = None

    # --- where we are ---

    @property
    def group(self) -> ImageGroup:
        """The open group."""
        if self._group is None:
            raise RuntimeError("no group is open")
        return self._group

    def finished_groups(self) -> set[str]:
        """Keys of the groups that are done; skip these before decoding anything."""
        return self.store.groups_with("done")

    def open(self, group: ImageGroup) -> GroupState:
        """Show ``group`` from where it was left."""
        self._group = group
        self._state = None
        return self._pair_when_judged(self.state())

    def state(self) -> GroupState:
        """The state of the open group."""
        if self._state is None:
            self._state = self._fold(self.store.events(self.group.key))
        return self._state

    def _fold(self, events: Sequence[Event]) -> GroupState:
        index = {name: i for i, name in enumerate(self.group.files)}
        alive = dict.fromkeys(range(len(self.group.files)))
        answers: list[Answer] = []
        verdicts: dict[int, bool | None] = {}
        pairs, target, phase = 0, self.settings.pairs_per_group, Phase.QUESTION
        for event in events:
            data = event.payload
            if event.kind == "answer":
                answer = _read_answer(data, index)
                answers += [answer] if answer is not None else []
            elif event.kind == "judge":
                if data["file"] in index:
                    verdicts[index[data["file"]]] = data["good"]
            elif event.kind == "pick":
                for name in data["used"]:
                    alive.pop(index.get(name, -1), None)
                pairs += len(data["pair_ids"])
                phase = Phase.CONTINUE if pairs >= target and len(alive) > 1 else Phase.QUESTION
            elif event.kind == "go_on":
                target, phase = pairs + self.settings.pairs_per_group, Phase.QUESTION
            elif event.kind == "done":
                phase = Phase.DONE
        left = list(alive)
        if len(left) < 2:
            phase = Phase.DONE
        place = standing(self.settings.mode, len(self.group.files), answers)
        state = GroupState(
            phase, (), left, answers, place, place.certainty(left), pairs, target, events=len(events)
        )
        state.good = [i for i in left if verdicts.get(i) is True]
        state.bad = [i for i in left if verdicts.get(i) is False]
        if phase is Phase.QUESTION:
            state.question = self._question(state, [i for i in left if i not in verdicts])
        return state

    def _question(self, state: GroupState, unjudged: list[int]) -> tuple[int, ...]:
        mode = self.settings.mode
        if mode is CurationMode.SELECT:
            return tuple(state.alive)
        if mode is CurationMode.TRIAGE:
            return tuple(unjudged[:1])
        rng = python_random("curation-question", self.settings.seed, self.group.key, state.events)
        wanted = max(1, state.pairs_target - state.pairs)
        return ask(mode, state.standing, state.alive, state.answers, rng, wanted)

    def _log(self, kind: str, payload: dict[str, Any]) -> GroupState:
        self.store.append(self.group.key, kind, payload)
        self._state = None
        return self.state()

    def _need(self, *phases: Phase) -> GroupState:
        state = self.state()
        if state.phase not in phases:
            raise RuntimeError(f"this needs the phase {phases}, but the group is {state.phase}")
        return state

    # --- verbs ---

    def answer(
        self, best: int | None = None, worst: int | None = None, tie: bool = False, both_bad: bool = False
    ) -> GroupState:
        """Answer the open question by image index; nothing given is a skip. May export a pair (SMART,
        FOUR-UP).

        In a question of two, the other image is the worst one without being named.
        """
        state = self._need(Phase.QUESTION)
        if len(state.question) == 2 and best is not None and worst is None:
            worst = next(i for i in state.question if i != best)
        made = Answer(state.question, best, worst, tie, both_bad)
        name = self.group.files.__getitem__
        state = self._log(
            "answer",
            {
                "mode": self.settings.mode.value,
                "places": [name(i) for i in made.places],
                "best": None if made.best is None else name(made.best),
                "worst": None if made.worst is None else name(made.worst),
                "tie": tie,
                "both_bad": both_bad,
            },
        )
        automatic = self.settings.mode in (CurationMode.SMART, CurationMode.FOUR_UP)
        if automatic and is_settled(state.standing, state.alive, self.settings.threshold):
            return self._pick_extremes(state, automatic=True)
        return state

    def skip(self) -> GroupState:
        """Pass over the open question."""
        return self.answer()

    def pick_now(self) -> GroupState:
        """Export best over worst of what is alive, as the ranking stands."""
        return self._pick_extremes(self._need(Phase.QUESTION), automatic=False)

    def _pick_extremes(self, state: GroupState, automatic: bool) -> GroupState:
        order = state.standing.order(state.alive)
        return self._pick([(order[0], order[-1])], state.certainty, automatic)

    def choose(self, best: int, worst: int) -> GroupState:
        """SELECT: export these two."""
        state = self._need(Phase.QUESTION)
        if best == worst or best not in state.alive or worst not in state.alive:
            raise UserError("choose two different images of the group")
        return self._pick([(best, worst)])

    def judge(self, good: bool | None) -> GroupState:
        """TRIAGE: the shown image is good, bad, or neither (``None``), and then in no pair.

        After the last one, the pools are paired and exported.
        """
        state = self._need(Phase.QUESTION)
        if self.settings.mode is not CurationMode.TRIAGE:
            raise RuntimeError("judging belongs to TRIAGE")
        return self._pair_when_judged(
            self._log("judge", {"file": self.group.files[state.question[0]], "good": good})
        )

    def _pair_when_judged(self, state: GroupState) -> GroupState:
        """TRIAGE: once nothing is left to judge, pair the pools, or end a group that gives no pair."""
        triage = self.settings.mode is CurationMode.TRIAGE
        if not triage or state.phase is not Phase.QUESTION or state.question:
            return state
        pairs = pools_to_pairs(
            state.good, state.bad, self._image_distance, max(1, state.pairs_target - state.pairs)
        )
        if pairs:
            return self._pair_when_judged(self._pick(pairs, automatic=True))
        return self._log("done", {"automatic": True})

    def _image_distance(self, first: int, second: int) -> float:
        if self._distance is None:
            return 0.0
        return self._distance(self.group.path(first), self.group.path(second))

    def export_ranked(self, order: Sequence[int], count: int) -> GroupState:
        """Ranked review: export ``count`` pairs from an order the person has approved, in one go."""
        state = self._need(Phase.QUESTION, Phase.CONTINUE)
        if sorted(order) != sorted(state.alive):
            raise UserError("the order must hold every image that is left, once")
        pairs = ranked_pairs(order, count)
        if not pairs:
            raise UserError(f"{count} pairs cannot be made from {len(order)} images")
        return self._pick(pairs)

    def _pick(
        self, pairs: Sequence[tuple[int, int]], certainty: float | None = None, automatic: bool = False
    ) -> GroupState:
        group = self.group
        self.store.export(
            group.key,
            [(group.path(best), group.path(worst)) for best, worst in pairs],
            group.prompt,
            group.aspectratio,
            {
                "used": [group.files[i] for pair in pairs for i in pair],
                "certainty": certainty,
                "automatic": automatic,
            },
        )
        self._state = None
        state = self.state()
        if state.phase is Phase.DONE:
            return self._log("done", {"automatic": True})
        return state

    def go_on(self) -> GroupState:
        """Keep scoring this prompt."""
        self._need(Phase.CONTINUE)
        return self._pair_when_judged(self._log("go_on", {}))

    def finish_group(self, automatic: bool = False) -> GroupState:
        """This group is done, with however many pairs it has.

        Args:
            automatic: it follows from the step before and is undone with it.
        """
        return self._log("done", {"automatic": automatic})

    def undo(self) -> str | None:
        """Take back the last event, in this or an earlier group.

        What followed by itself (a pick made by certainty, the end of a used-up group) goes with its cause.

        Returns:
            The key of the group it was in (open that one to show it), or ``None`` when there is nothing left.
        """
        event = self.store.undo_last()
        while event is not None and event.payload.get("automatic"):
            event = self.store.undo_last()
        self._state = None
        return None if event is None else event.group_key

    def pairs(self) -> list[Pair]:
        """Every pair in the output folder."""
        return self.store.pairs()


def _read_answer(data: dict[str, Any], index: dict[str, int]) -> Answer | None:
    """An answer from the log; ``None`` when an image of it is gone from the folder."""
    names = [*data["places"], *(n for n in (data["best"], data["worst"]) if n is not None)]
    if any(name not in index for name in names):
        return None
    best, worst = (None if data[k] is None else index[data[k]] for k in ("best", "worst"))
    return Answer(tuple(index[n] for n in data["places"]), best, worst, data["tie"], data["both_bad"])
