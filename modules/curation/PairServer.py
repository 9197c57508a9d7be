"""Picking over two streams of lines, with questions and answers as JSON objects.

The verbs are those of ``CurationSession``. See docs/curation.md for the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import IO, Any

from modules.curation.choosing.base import AnswerKind, Layout
from modules.curation.group_state import GroupState, Phase
from modules.curation.GroupWalk import GroupWalk
from modules.curation.ImageGroup import ImageGroup
from modules.curation.intake.scan import ScanFault, edits_without_source
from modules.curation.LineServer import LineServer, Message
from modules.curation.marking.Marks import NAMES
from modules.curation.marking.Sheet import Sheet
from modules.curation.statistics import answer_statistics
from modules.util.errors import UserError

MAX_LISTED = 1000


class PairServer(LineServer):
    """Answers requests one by one until ``quit`` or the end of the input.

    Args:
        requests: lines of UTF-8 bytes.
        replies: lines of text; flushed after each.
        faults: returns the files that the scan has left out so far.
    """

    def __init__(
        self, walk: GroupWalk, requests: IO[bytes], replies: IO[str], faults: Sequence[ScanFault] = ()
    ) -> None:
        self.walk = walk
        self._session = walk.session
        self._sheet = Sheet(walk)
        self._faults = faults
        verbs: dict[str, Callable[[Message], Message]] = {
            "state": lambda request: self.where(),
            "ranking": lambda request: self._ranking(),
            "stats": lambda request: self._statistics(),
            "faults": lambda request: self._left_out(),
            "undo": lambda request: self._undo(),
            "later": lambda request: self._later(),
            "passed": lambda request: self._passed(),
            "open": self._open_passed,
            "answer": self._answer,
            "tie": lambda request: self._compare(lambda: self._session.answer(tie=True)),
            "both_bad": lambda request: self._compare(lambda: self._session.answer(both_bad=True)),
            "skip": lambda request: self._compare(self._session.skip),
            "pick": lambda request: self._compare(self._session.pick_now),
            "choose": self._choose,
            "judge": self._judge,
            "like": lambda request: self._mark(request, True),
            "dislike": lambda request: self._mark(request, False),
            "unmark": lambda request: self._mark(request, None),
            "seen": self._seen,
            "close": lambda request: self._act(self._session.close_marks, AnswerKind.MARK),
            "rank": self._rank,
            "go_on": lambda request: self._act(self._session.go_on, phases=(Phase.CONTINUE,)),
            "finish_group": lambda request: self._act(
                self._session.finish_group, phases=(Phase.QUESTION, Phase.CONTINUE)
            ),
        }
        super().__init__(requests, replies, verbs)

    def hello(self) -> Message:
        return {"mode": self._session.settings.mode.value, "pairs": self._pair_count()}

    def bye(self) -> Message:
        return {"pairs": self._pair_count(), "groups_finished": self.walk.finished}

    def _pair_count(self) -> int:
        return self._session.store.pair_count()

    # --- where we are ---

    def where(self, **more: Any) -> Message:
        """The open question, the choice whether to continue a prompt, or the end."""
        group, state = self.walk.group, self.walk.state()
        note, self._session.note = self._session.note, ""
        common = {"pairs": self._pair_count(), "groups_finished": self.walk.finished, **more}
        common |= {"note": note} if note else {}
        if group is None or state is None:
            missing = sum(edits_without_source(self._faults).values())
            return {"type": "finished", **({"edits_without_source": missing} if missing else {}), **common}
        return {
            "type": state.phase.value,
            "group": group.key,
            "prompt": group.prompt,
            "aspectratio": group.aspectratio,
            **self._sources(group),
            "images": len(group.files),
            "left": len(state.alive),
            "show": [self._image(group, index) for index in state.question],
            "answers": len(state.answers),
            "certainty": state.certainty,
            "pairs_here": state.pairs,
            **({"again": state.again} if state.again else {}),
            **(self._page() if self._session.way.layout is Layout.SHEET else {}),
            **common,
        }

    @staticmethod
    def _sources(group: ImageGroup) -> Message:
        """The sources, if the images are edits."""
        return {"sources": [str(source.path) for source in group.sources]} if group.sources else {}

    @staticmethod
    def _image(group: ImageGroup, index: int) -> Message:
        return {"file": group.files[index], "path": str(group.path(index))}

    def _open(self, kind: AnswerKind | None, phases: tuple[Phase, ...]) -> tuple[ImageGroup, GroupState]:
        """The open group, if the request is possible now."""
        group, state = self.walk.group, self.walk.state()
        if group is None or state is None:
            raise UserError("all groups are done")
        if kind not in (None, self._session.way.kind):
            raise UserError(f"that is not possible in the mode {self._session.settings.mode.value}")
        if state.phase not in phases:
            raise UserError(f"that is not possible now: the group waits for {state.phase.value!r}")
        return group, state

    def _act(
        self,
        verb: Callable[[], object],
        kind: AnswerKind | None = None,
        phases: tuple[Phase, ...] = (Phase.QUESTION,),
    ) -> Message:
        """Run a verb, move on if it ended the group, and report the position and what was exported."""
        group, _ = self._open(kind, phases)
        before = self._exported(group)
        verb()
        exported = [pair_id for pair_id in self._exported(group) if pair_id not in before]
        self.walk.advance()
        return self.where(exported=exported)

    def _compare(self, verb: Callable[[], object]) -> Message:
        return self._act(verb, AnswerKind.COMPARE)

    def _exported(self, group: ImageGroup) -> list[str]:
        events = self._session.store.events(group.key)
        return [pair_id for event in events for pair_id in event.payload.get("pair_ids", [])]

    # --- requests with fields ---

    def _place(self, request: Message, field: str, group: ImageGroup, state: GroupState) -> int | None:
        """An image of the group, by its position in ``show`` or by file name."""
        value = request.get(field)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(state.question):
            return state.question[value]
        if isinstance(value, str) and value in group.files and group.files.index(value) in state.question:
            return group.files.index(value)
        raise UserError(
            f"{field!r}: {value!r} is not shown",
            hint="name a file of the question, or its position counted from 0",
        )

    def _both(self, request: Message, group: ImageGroup, state: GroupState) -> tuple[int, int]:
        best, worst = (self._place(request, field, group, state) for field in ("best", "worst"))
        if best is None or worst is None or best == worst:
            raise UserError('this needs two different images as "best" and "worst"')
        return best, worst

    def _answer(self, request: Message) -> Message:
        group, state = self._open(AnswerKind.COMPARE, (Phase.QUESTION,))
        if len(state.question) > 2:
            best, worst = self._both(request, group, state)
            return self._act(lambda: self._session.answer(best, worst))
        place = self._place(request, "best", group, state)
        if place is None or request.get("worst") is not None:
            raise UserError('this needs "best", the preferred image of the two')
        return self._act(lambda: self._session.answer(place))

    def _choose(self, request: Message) -> Message:
        best, worst = self._both(request, *self._open(AnswerKind.CHOOSE, (Phase.QUESTION,)))
        return self._act(lambda: self._session.choose(best, worst))

    def _judge(self, request: Message) -> Message:
        good = request.get("good")
        if "good" not in request or not (good is None or isinstance(good, bool)):
            raise UserError('this needs "good": true, false, or null for neither')
        return self._act(lambda: self._session.judge(good), AnswerKind.JUDGE)

    def _page(self) -> Message:
        """The marks so far, and the prompts whose images can be marked, the open one first."""
        strips = [
            {
                "group": one.group.key,
                "prompt": one.group.prompt,
                **self._sources(one.group),
                "images": [
                    {
                        "file": name,
                        "path": str(one.group.root / name),
                        "mark": "new" if one.is_new(name) else NAMES.get(one.mark(name), "seen"),
                    }
                    for name in one.files
                ],
            }
            for one in self._sheet.strips()
        ]
        counts = self.walk.counts
        return {"page": strips, "seen": counts.seen, "liked": counts.liked, "disliked": counts.disliked}

    def _on_page(self, request: Message) -> str:
        """The group of a request about marks: the open one if none is named."""
        group, _ = self._open(AnswerKind.MARK, (Phase.QUESTION,))
        key = request.get("group", group.key)
        if not isinstance(key, str):
            raise UserError('"group" is the group of one of the prompts in "page"')
        return key

    def _mark(self, request: Message, like: bool | None) -> Message:
        key, name = self._on_page(request), request.get("file")
        if not isinstance(name, str):
            raise UserError('this needs "file": one of the images in "page", and its "group"')
        self._sheet.mark(key, name, like)
        return self.where()

    def _seen(self, request: Message) -> Message:
        key, names = self._on_page(request), request.get("files")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError('this needs "files": images in "page" that were looked at')
        self._sheet.see(key, names)
        return self.where()

    def _rank(self, request: Message) -> Message:
        phases = (Phase.QUESTION, Phase.CONTINUE)
        group, _ = self._open(AnswerKind.COMPARE, phases)
        order, count = request.get("order"), request.get("count")
        if not isinstance(order, list) or not all(isinstance(n, str) and n in group.files for n in order):
            raise UserError('this needs "order": the files that are left, best first')
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise UserError('this needs "count": how many pairs to export')
        indices = [group.files.index(name) for name in order]
        return self._act(lambda: self._session.export_ranked(indices, count), phases=phases)

    # --- the rest ---

    def _ranking(self) -> Message:
        group, state = self._open(AnswerKind.COMPARE, (Phase.QUESTION, Phase.CONTINUE))
        rows = [
            {"file": group.files[i], "rating": round(float(state.standing.ratings[i]), 1)}
            for i in state.standing.order(state.alive)
        ]
        return {"type": "ranking", "group": group.key, "certainty": state.certainty, "order": rows}

    def _statistics(self) -> Message:
        return {"type": "stats", **asdict(answer_statistics(self._session.store.events()))}

    def _left_out(self) -> Message:
        first = [{"path": str(f.path), "reason": f.reason} for f in self._faults[:MAX_LISTED]]
        edits = edits_without_source(self._faults)
        rows = [{"prompt": prompt, "images": count} for prompt, count in edits.items()]
        return {
            "type": "faults",
            "count": len(self._faults),
            "first": first,
            "edits_without_source": rows[:MAX_LISTED],
        }

    def _passed(self) -> Message:
        groups = [
            {"group": group.key, "prompt": group.prompt, "aspectratio": group.aspectratio}
            for group in self.walk.passed()
        ]
        return {"type": "passed", "count": self.walk.counts.passed, "groups": groups[:MAX_LISTED]}

    def _open_passed(self, request: Message) -> Message:
        key = request.get("group")
        if not isinstance(key, str):
            raise UserError('this needs "group": the group of an earlier reply')
        self.walk.open(key)
        return self.where()

    def _later(self) -> Message:
        self.walk.later()
        return self.where()

    def _undo(self) -> Message:
        key = self.walk.undo()
        if key is None:
            raise UserError("there is nothing to undo")
        return self.where(undone=key)
