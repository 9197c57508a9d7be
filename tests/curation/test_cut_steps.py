"""A step that is stopped at any of its changes of files is done, or was never begun, when the folder is next opened."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from modules.curation.CurationMode import CurationMode
from modules.curation.group_state import SessionSettings
from modules.curation.review.review import PairReview
from modules.curation.session import CurationSession
from modules.curation.store import CurationStore
from modules.util.dpo_curation_util import file_sha256
from modules.util.files.OpenFolder import observe
from modules.util.pairs.source_files import SourceImage
from tests.curation.test_session import make_group
from tests.faults.pair_folders import contents, make_pairs, write_images
from tests.usual import usual

Work = Callable[[Path], object]


class Stopped(BaseException):
    """Stands for a kill: nothing catches it, and nothing is changed after it."""


def stopped(work: Work, folder: Path, number: int, done: bool) -> bool:
    """Whether the work was stopped, before or after one of its changes (from 1)."""
    counted, over = 0, False

    def stop(kind: str, path: str, finished: bool) -> None:
        nonlocal counted, over
        counted += finished is done
        over = over or (counted == number and finished is done)
        if over:
            raise Stopped

    observe(stop)
    try:
        work(folder)
    except Stopped:
        pass
    finally:
        observe(None)
    return over


def seen(folder: Path) -> dict[str, bytes]:
    """The pairs and answers as the next start of the pair tool finds them, without the trash."""
    with CurationStore(folder) as store:
        events = [(e.group_key, e.kind, e.payload) for e in store.events() if e.kind != "remove"]
        pairs = store.pairs()
    files = {name: data for name, data in contents(folder).items() if not name.startswith(".trash/")}
    return {**files, "store": json.dumps([pairs, events], sort_keys=True).encode()}


def check_every_stop(start: Path, work: Work, reopen: Work) -> int:
    """Stop the work at each of its changes; returns how many that are."""
    case, ends = start.with_name("case"), []
    for run in (lambda folder: None, work):
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(start, case)
        run(case)
        reopen(case)
        ends.append(seen(case))
    assert ends[0] != ends[1]
    number = 0
    while True:
        number += 1
        for done in (False, True):
            shutil.rmtree(case)
            shutil.copytree(start, case)
            if not stopped(work, case, number, done):
                return number
            reopen(case)
            assert seen(case) in ends, f"stopped {'after' if done else 'before'} change {number}"


REVIEWS: dict[str, tuple[list[Callable[[PairReview], object]], Callable[[PairReview], object]]] = {
    "remove": ([], lambda review: review.remove("pair_0001")),
    "remove what has a new caption": (
        [lambda review: review.edit_caption("pair_0001", "another caption")],
        lambda review: review.remove("pair_0001"),
    ),
    "undo remove": ([lambda review: review.remove("pair_0001")], lambda review: review.undo()),
    "caption": ([], lambda review: review.edit_caption("pair_0001", "another caption")),
    "undo caption": (
        [lambda review: review.edit_caption("pair_0001", "another caption")],
        lambda review: review.undo(),
    ),
    "swap": ([], lambda review: review.swap("pair_0001")),
    "undo swap": ([lambda review: review.swap("pair_0001")], lambda review: review.undo()),
}


EDITS = ("remove an edit", "undo remove of an edit")
REVIEWS |= dict(zip(EDITS, (REVIEWS["remove"], REVIEWS["undo remove"]), strict=True))


@pytest.mark.parametrize("what", usual(REVIEWS, "remove", "undo swap", "undo caption", "remove an edit"))
def test_a_step_of_a_review_is_never_half_done(what: str, tmp_path: Path) -> None:
    before, step = REVIEWS[what]
    start = make_pairs(tmp_path, 2, True, 2 * (what in EDITS)).rename(tmp_path / "start")
    review = PairReview(start)
    for act in before:
        act(review)
    assert check_every_stop(start, lambda folder: step(PairReview(folder)), lambda folder: None) > 5


MODES = {
    CurationMode.SMART: [lambda session: session.answer(best=session.state().question[0])],
    CurationMode.TRIAGE: [lambda session: session.judge(True), lambda session: session.judge(False)],
}


CASES = {**{mode.value: (mode, 0) for mode in MODES}, "edits": (CurationMode.TRIAGE, 1)}


@pytest.mark.parametrize(
    ("case", "undo"),
    [
        pytest.param(case, undo, id=f"{case}-{'undo' if undo else 'answer'}", marks=marks)
        for case in CASES
        for undo in (False, True)
        for marks in [() if case == CurationMode.TRIAGE.value or (case == "edits" and not undo) else pytest.mark.slow]
    ],
)
def test_an_answer_that_saves_a_pair_is_never_half_given_or_half_undone(
    case: str, undo: bool, tmp_path: Path
) -> None:
    mode, sources = CASES[case]
    files = write_images(tmp_path / "sources", sources)
    edited = tuple(SourceImage(file, file_sha256(file)) for file in files)
    group, acts = replace(make_group(tmp_path / "in", 2), sources=edited), MODES[mode]

    def opened(folder: Path, *steps: Callable[[CurationSession], object]) -> None:
        store = CurationStore(folder)
        try:
            session = CurationSession(store, SessionSettings(mode, threshold=0.6))
            session.open(group)
            for step in steps:
                step(session)
        except Stopped:
            store._db.close()  # a killed process writes nothing more
            store._lock.close()
            raise
        store.close()

    start = tmp_path / "start"
    opened(start, *(acts if undo else acts[:-1]))
    last = (lambda session: session.undo()) if undo else acts[-1]
    changes = check_every_stop(start, lambda folder: opened(folder, last), opened)
    assert changes > 5


def test_opening_a_group_saves_no_pair_that_no_answer_has_asked_for(tmp_path: Path) -> None:
    group = make_group(tmp_path / "in", 2)
    for threshold, pairs in ((0.95, 0), (0.6, 0)):
        with CurationStore(tmp_path / "out") as store:
            session = CurationSession(store, SessionSettings(CurationMode.SMART, threshold=threshold))
            session.open(group)
            if threshold == 0.95:
                session.answer(best=session.state().question[0])
            assert len(session.pairs()) == pairs
