"""A picking session as a state machine: the open question, the effect of answers, and undo.

Nothing here draws. A view shows ``session.state()`` and calls the verbs. Every verb is on disk before it
returns, and the state is always the fold of the store's events, so that a killed session resumes where it
was.

Phases of a group::

    QUESTION  -> answer / skip / pick_now, choose, judge, or mark and close, by the way of choosing
    CONTINUE  -> go_on (keep scoring this prompt) / finish_group / undo (takes the pick back)
    DONE      -> the next group / reopen
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from modules.curation.choosing.base import AnswerKind, Settled, WayOfChoosing
from modules.curation.finished import FinishedGroups
from modules.curation.group_state import GroupState, Phase, SessionSettings, fold
from modules.curation.ImageGroup import ImageGroup
from modules.curation.standing import Answer, compared_images, ranked_pairs
from modules.curation.store import CurationStore
from modules.util.display import counted
from modules.util.dpo_curation_util import Pair
from modules.util.errors import UserError
from modules.util.files.EventLog import Event
from modules.util.owned_files import shown
from modules.util.pairs.decoding import UndecodableImage
from modules.util.pairs.pair_sources import LostSource

SEEN = "seen"
"""Events that record what was on the screen; they are not answers."""
NOT_UNDONE = (SEEN, "remove")
"""Events that undo skips. The review has its own undo for the pairs removed there."""
LEAST_LEANING = 1e-9
"""A probability as close as this to a coin toss comes from rounding: the answers say nothing."""


class Refused(UserError):
    """An action that is not possible in the current state. Nothing has changed."""


class CurationSession:
    """A picking session: one group after another, with durable events.

    Args:
        store: the open store of the output folder.
        settings: how to choose.
        distance: visual distance of two image files, for pairing similar images; 0 for all if not given.
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
        self._gone: dict[str, set[str]] = {}
        self.note = ""
        """An event besides the requested action, in one sentence. The code that shows it clears it."""

    # --- where we are ---

    @property
    def way(self) -> WayOfChoosing:
        """The way of choosing."""
        return self.settings.mode.way

    @property
    def group(self) -> ImageGroup:
        """The open group."""
        if self._group is None:
            raise RuntimeError("no group is open")
        return self._group

    def finished_groups(self) -> FinishedGroups:
        """The finished groups, to be skipped before decoding anything."""
        return FinishedGroups(self.store.events(), self.settings.pairs_per_group)

    def open(self, group: ImageGroup) -> GroupState:
        """Show ``group`` in the state it was left in, without images that have disappeared."""
        self._group = self.intact(group)
        self._state = None
        return self._finish_step(self.state())

    def state(self) -> GroupState:
        """The state of the open group."""
        if self._state is None:
            self._state = fold(self.group, self.settings, self.store.events(self.group.key))
        return self._state

    def _log(self, kind: str, payload: dict[str, Any]) -> GroupState:
        self.store.append(self.group.key, kind, payload)
        self._state = None
        return self.state()

    def _need(self, *phases: Phase, kind: AnswerKind | None = None) -> GroupState:
        state = self.state()
        if state.phase not in phases:
            raise RuntimeError(f"this needs the phase {phases}, but the group is {state.phase}")
        if kind not in (None, self.way.kind):
            raise RuntimeError(f"this is for a way of choosing of the kind {kind}, not {self.settings.mode}")
        return state

    def _answer(self, kind: str, payload: dict[str, Any]) -> GroupState:
        """Record an answer, together with the pairs or the end that follow from it, then carry these out.

        If a kill or a full disk prevents that, it is done when the group is next opened. The answer to the last
        question is taken back then, so that it can be given again.
        """
        key = self.group.key
        events = [*self.store.events(key), Event(0, key, kind, payload, 0.0)]
        state = fold(self.group, self.settings, events)
        settled = self._settled(state)
        self.store.append(key, kind, payload if settled is None else {**payload, "settles": True})
        self._state = state
        try:
            return state if settled is None else self._carry_out(settled, state)
        except UserError:
            if not state.question and self.store.events(key)[-1].kind == kind:
                self.undo()  # it was the last question: without it nothing would be asked, and nothing could be retried
            raise

    def _finish_step(self, state: GroupState) -> GroupState:
        """Carry out what follows from the last event, if that was interrupted."""
        events = self.store.events(self.group.key)
        last = events[-1] if events else None
        if last is not None and last.kind == "pick" and state.phase is Phase.DONE:
            return self.finish_group(automatic=True)
        return self._settle(state, answered=last is not None and last.payload.get("settles") is True)

    def _settle(self, state: GroupState, answered: bool = False) -> GroupState:
        """Export pairs or end the group, if that follows from an answer or from the lack of a question."""
        settled = None if state.question and not answered else self._settled(state)
        return state if settled is None else self._carry_out(settled, state)

    def _settled(self, state: GroupState) -> Settled | None:
        if state.phase is not Phase.QUESTION:
            return None
        return self.way.settle(state.situation, self.settings.threshold, self._image_distance)

    def _carry_out(self, settled: Settled, state: GroupState) -> GroupState:
        if settled.pairs:
            certainty = state.certainty if self.way.compares else None
            return self._settle(self._pick(settled.pairs, certainty, automatic=True))
        self.note = settled.note or self.note
        return self.finish_group(automatic=True)

    # --- verbs ---

    def answer(
        self, best: int | None = None, worst: int | None = None, tie: bool = False, both_bad: bool = False
    ) -> GroupState:
        """Answer the open question by image index; without arguments it is skipped. May export a pair, if the
        way of choosing saves automatically.

        With two images, the other one is the worst by default.
        """
        state = self._need(Phase.QUESTION, kind=AnswerKind.COMPARE)
        if len(state.question) == 2 and best is not None and worst is None:
            worst = next(i for i in state.question if i != best)
        made = Answer(state.question, best, worst, tie, both_bad)
        name = self.group.files.__getitem__
        payload = {
            "mode": self.settings.mode.value,
            "places": [name(i) for i in made.places],
            "best": None if made.best is None else name(made.best),
            "worst": None if made.worst is None else name(made.worst),
            "tie": tie,
            "both_bad": both_bad,
        }
        return self._answer("answer", payload)

    def skip(self) -> GroupState:
        """Skip the open question."""
        return self.answer()

    def pick_now(self) -> GroupState:
        """Export the best over the worst judged image by the current ranking.

        Raises:
            Refused: no image has been preferred to another yet.
        """
        state = self._need(Phase.QUESTION, kind=AnswerKind.COMPARE)
        judged = compared_images(state.answers)
        order = state.standing.order([i for i in state.alive if i in judged])
        ratings = state.standing.ratings
        if len(order) < 2 or not ratings[order[0]] > ratings[order[-1]]:
            raise Refused(
                "no image has been preferred to another one yet", hint="answer a question first"
            )
        certainty = state.standing.posterior.probability_ordered(order[0], order[-1])
        return self._pick([(order[0], order[-1])], certainty)

    def choose(self, best: int, worst: int) -> GroupState:
        """Export these two images as a pair."""
        state = self._need(Phase.QUESTION, kind=AnswerKind.CHOOSE)
        if best == worst or best not in state.alive or worst not in state.alive:
            raise UserError("choose two different images of the group")
        return self._pick([(best, worst)])

    def judge(self, good: bool | None) -> GroupState:
        """Rate the shown image as good, bad, or neither (``None``), which excludes it from pairs.

        After the last image, the pools are paired and exported.
        """
        state = self._need(Phase.QUESTION, kind=AnswerKind.JUDGE)
        verdict = {"file": self.group.files[state.question[0]], "good": good}
        return self._answer("judge", verdict)

    # --- marks, in any group ---

    def intact(self, group: ImageGroup) -> ImageGroup:
        """A group without images that have disappeared."""
        return group.without(self._gone.get(group.key, ()))

    def state_of(self, group: ImageGroup) -> GroupState:
        """The state of any group, open or not."""
        return fold(self.intact(group), self.settings, self.store.events(group.key))

    def mark(self, group: ImageGroup, name: str, like: bool | None) -> None:
        """Like or dislike an image of any group that is not done; ``None`` removes the mark.

        Raises:
            Refused: the group no longer has this image, or is done.
        """
        self._need_marking(group, [name])
        # the prompt makes a list of likes complete without the images
        self.store.append(group.key, "mark", {"file": name, "like": like, "prompt": group.prompt})
        self._state = None

    def see(self, group: ImageGroup, names: Sequence[str]) -> None:
        """Record that these images were looked at. An earlier or later mark takes precedence, and undo skips
        this event.
        """
        self._need_marking(group, names)
        self.store.append(group.key, SEEN, {"files": list(names), "prompt": group.prompt})
        self._state = None

    def _need_marking(self, group: ImageGroup, names: Sequence[str]) -> None:
        if self.way.kind is not AnswerKind.MARK:
            raise RuntimeError(f"{self.settings.mode} has no marks")
        state = self.state_of(group)
        left = {self.intact(group).files[i] for i in state.question}
        if not left.issuperset(names):
            raise Refused("this image is in a pair, or its prompt is done", hint="undo that first")

    def close_marks(self, automatic: bool = False) -> GroupState:
        """Finish marking the open group: every liked image makes a pair, if there is a worse one.

        Args:
            automatic: whether it follows from closing the previous group, and is undone with that.
        """
        self._need(Phase.QUESTION, kind=AnswerKind.MARK)
        return self._answer("close", {"automatic": automatic})

    def _image_distance(self, first: int, second: int) -> float:
        if self._distance is None:
            return 0.0
        return self._distance(self.group.path(first), self.group.path(second))

    def export_ranked(self, order: Sequence[int], count: int) -> GroupState:
        """Ranked review: export ``count`` pairs at once from an order approved by the person."""
        state = self._need(Phase.QUESTION, Phase.CONTINUE)
        if sorted(order) != sorted(state.alive):
            raise UserError("the order must list every remaining image exactly once")
        pairs = ranked_pairs(order, count)
        if not pairs:
            raise UserError(f"{counted(count, 'pair')} cannot be made from {counted(len(order), 'image')}")
        return self._pick(pairs)

    def _pick(
        self, pairs: Sequence[tuple[int, int]], certainty: float | None = None, automatic: bool = False
    ) -> GroupState:
        group = self.group
        gone = [group.files[i] for pair in pairs for i in pair if not group.is_intact(i)]
        if gone:
            return self._leave_out(gone)
        used = [i for pair in pairs for i in pair]
        payload = {
            "used": [group.files[i] for i in used],
            "certainty": certainty,
            "automatic": automatic,
        }
        picks = [(group.path(best), group.path(worst)) for best, worst in pairs]
        try:
            known = [self._certainty(best, worst) for best, worst in pairs]
            facts = (group.prompt, group.aspectratio, payload, known, group.sources)
            self.store.export(group.key, picks, *facts)
        except UndecodableImage as error:
            return self._leave_out([group.files[i] for i in used if group.path(i) == error.path])
        except LostSource as error:
            away = group.missing_source_folder()
            if away is not None:
                raise UserError(
                    f"no pair was saved: the folder of source images {shown(away)} is missing or cannot be read",
                    hint="connect its drive or put the folder back, then answer again; your answers are kept",
                ) from error
            self.note = f"No pair was saved: {error.message}."
            return self.finish_group(automatic=True)
        self._state = None
        state = self.state()
        return self.finish_group(automatic=True) if state.phase is Phase.DONE else state

    def _certainty(self, best: int, worst: int) -> float | None:
        """The ranking's certainty of a pair; ``None`` if the answers say nothing about it, as when neither image was
        compared or each only with others, or if the person decided otherwise.
        """
        state = self.state()
        if not self.way.compares or compared_images(state.answers).isdisjoint((best, worst)):
            return None
        found = state.standing.posterior.probability_ordered(best, worst)
        return min(1.0, found) if found > 0.5 + LEAST_LEANING else None

    def _leave_out(self, gone: Sequence[str]) -> GroupState:
        """Remove files from the group that are no longer images, or have changed since they were shown.
        Exports nothing.

        Raises:
            UserError: the whole source folder is away. Its images may come back, so nothing said of them is dropped.
        """
        if not self.group.has_its_folder():
            raise UserError(
                f"no pair was saved: the image folder {shown(self.group.root)} is missing, empty or cannot be read",
                hint="connect its drive or put the folder back, then answer again; your answers are kept",
            )
        self._gone.setdefault(self.group.key, set()).update(gone)
        self._group = self.group.without(gone)
        names = " and ".join(gone)
        self.note = (
            f"No pair was saved: {names} {'was' if len(gone) == 1 else 'were'} deleted, replaced or damaged."
        )
        state = self._log("gone", {"files": list(gone), "automatic": True})
        return self.finish_group(automatic=True) if state.phase is Phase.DONE else state

    def go_on(self) -> GroupState:
        """Keep scoring this prompt."""
        self._need(Phase.CONTINUE)
        return self._settle(self._log("go_on", {}))

    def finish_group(self, automatic: bool = False) -> GroupState:
        """Finish the group with the pairs it has.

        Args:
            automatic: whether it follows from the previous step and is undone with it.
        """
        state = self.state()
        left = [self.group.files[i] for i in state.alive]
        wanted = self.settings.pairs_per_group
        return self._log("done", {"automatic": automatic, "left": left, "wanted": wanted})

    def reopen(self) -> GroupState:
        """Reopen a finished group. Verdicts on single images must be given again.

        Raises:
            Refused: fewer than two of its images are unpaired.
        """
        state = self._need(Phase.DONE)
        if len(state.alive) < 2:
            raise Refused("fewer than two images of this prompt are left")
        return self._settle(self._log("reopen", {}))

    def undo(self) -> str | None:
        """Undo the last event, in this or an earlier group.

        Automatic consequences (a pick by certainty, the end of a used-up group) are undone with their cause.

        Returns:
            The key of its group (open that to show it), or ``None`` if there is nothing left to undo.
        """
        event = self.store.undo_last(
            lambda event: bool(event.payload.get("automatic")), lambda event: event.kind in NOT_UNDONE
        )
        self._state = None
        return None if event is None else event.group_key

    def pairs(self) -> list[Pair]:
        """Every pair in the output folder."""
        return self.store.pairs()

    def pairs_here(self) -> list[Pair]:
        """The pairs of the open group that are still in the folder, in the order they were made."""
        names = [i for e in self.store.events(self.group.key) for i in e.payload.get("pair_ids", [])]
        return [pair for pair in map(self.store.pair, names) if pair is not None]
