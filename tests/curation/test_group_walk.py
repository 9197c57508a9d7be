"""Walking through groups that a scan hands out, some of them twice, ahead of the person."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from modules.curation.CurationMode import CurationMode
from modules.curation.group_state import Phase, SessionSettings
from modules.curation.GroupsAhead import Found, GroupsAhead, ScanControl
from modules.curation.GroupWalk import Counts, GroupWalk
from modules.curation.ImageGroup import ImageGroup
from modules.curation.session import CurationSession, Refused
from modules.curation.store import CurationStore
from modules.util.errors import UserError


def group(root: Path, name: str, count: int) -> ImageGroup:
    files = tuple(f"{name}{i}.png" for i in range(count))
    for i, file in enumerate(files):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(root / file)
    return ImageGroup(name, name, "1:1", root, files)


Opener = Callable[..., GroupsAhead]


@pytest.fixture
def ahead() -> Iterator[Opener]:
    """Groups in a given order; the scan waits at an event in between until it is set."""
    made: list[GroupsAhead] = []

    def find(*found: Found | threading.Event, **options: object) -> GroupsAhead:
        def scan(control: ScanControl) -> Iterator[Found]:
            for one in found:
                if isinstance(one, threading.Event):
                    while not one.wait(0.01) and not control.stopped():
                        pass
                else:
                    yield one
            control.counted(len({one.key for one in found if isinstance(one, ImageGroup)}))

        made.append(GroupsAhead(scan, **options))
        return made[-1]

    yield find
    for one in made:
        one.close()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[CurationSession]:
    with CurationStore(tmp_path / "out") as store:
        yield CurationSession(store, SessionSettings(CurationMode.ELO))


def test_a_group_that_grew_takes_the_place_of_the_smaller_one(tmp_path, session, ahead):
    a, b, more = group(tmp_path, "a", 2), group(tmp_path, "b", 3), group(tmp_path, "a", 5)
    go = threading.Event()
    walk = GroupWalk(session, ahead(a, b, go, more))
    assert walk.group == a
    go.set()
    walk.later()
    assert walk.group == b
    walk.act(lambda session: session.finish_group())
    assert walk.group == more
    assert len(session.state().alive) == 5


def test_the_open_group_takes_in_images_found_since_between_two_questions(tmp_path, session, ahead):
    a, more = group(tmp_path, "a", 2), group(tmp_path, "a", 5)
    go = threading.Event()
    found = ahead(a, go, more)
    walk = GroupWalk(session, found)
    go.set()
    assert found.take("none", wait=True) is None, "the scan has ended"
    assert walk.group == a, "not while the person looks at the question"
    walk.act(lambda session: session.skip())
    assert walk.group == more
    assert len(walk.state().answers) == 1


def test_an_undo_finds_a_group_the_scan_has_not_reached(tmp_path, session, ahead):
    groups = [group(tmp_path, name, 3) for name in "abc"]
    session.open(groups[2])
    session.skip()
    walk = GroupWalk(session, ahead(*groups))
    assert walk.group == groups[0]
    assert walk.undo() == "c"
    assert walk.group == groups[2]
    order = []
    while walk.group is not None:
        order.append(walk.group.key)
        walk.act(lambda session: session.finish_group())
    assert order == ["c", "a", "b"]


def test_a_window_does_not_wait_for_the_group_of_an_undo_and_gets_it_when_it_is_found(
    tmp_path, session, ahead
):
    a, b = group(tmp_path, "a", 3), group(tmp_path, "b", 3)
    session.open(b)
    session.finish_group()
    go = threading.Event()
    found = ahead(a, go, b, finished=session.finished_groups())
    while not found.coming(1):
        pass
    walk = GroupWalk(session, found, wait=False)
    assert walk.undo() == "b"
    assert walk.group == a
    go.set()
    found.take("none", wait=True)
    walk.act(lambda session: session.finish_group())
    assert walk.group == b
    walk.act(lambda session: session.finish_group())
    assert (walk.group, walk.status().searching) == (None, False)


def test_undoing_in_a_group_of_another_folder_stays_here(tmp_path, session, ahead):
    elsewhere, here = group(tmp_path, "x", 3), group(tmp_path, "a", 3)
    session.open(elsewhere)
    session.skip()
    walk = GroupWalk(session, ahead(here))
    assert walk.undo() == "x"
    assert walk.group == here
    assert walk.undo() is None


def test_a_group_put_off_comes_after_those_that_are_found_later(tmp_path, session, ahead):
    a, b, c = (group(tmp_path, name, 3) for name in "abc")
    go = threading.Event()
    walk = GroupWalk(session, ahead(a, go, b, c))
    threading.Timer(0.1, go.set).start()
    order = []
    walk.later()
    while walk.group is not None:
        order.append(walk.group.key)
        walk.act(lambda session: session.finish_group())
    assert order == ["b", "c", "a"]


def test_without_asking_a_group_with_enough_pairs_is_done(tmp_path, session, ahead):
    walk = GroupWalk(session, ahead(group(tmp_path, "a", 6)), ask_to_continue=False)
    walk.act(lambda session: session.answer(best=session.state().question[0]))
    walk.act(lambda session: session.pick_now())
    assert (walk.group, walk.finished, walk.closed, walk.counts.paired) == (None, 1, 1, 1)
    assert walk.undo() == "a"
    assert (walk.state().phase, walk.finished, walk.counts.paired) == (Phase.QUESTION, 0, 0)


ANSWERS: dict[str, tuple[Callable[[CurationSession], object], Counts]] = {
    "preference": (lambda s: s.answer(best=s.state().question[0]), Counts(seen=1)),
    "tie": (lambda s: s.answer(tie=True), Counts(seen=1)),
    "both bad": (lambda s: s.answer(both_bad=True), Counts(seen=1)),
    "skip": (lambda s: s.skip(), Counts(seen=1, skipped=1)),
    "good": (lambda s: s.judge(True), Counts(seen=1)),
    "bad": (lambda s: s.judge(False), Counts(seen=1)),
    "neither": (lambda s: s.judge(None), Counts(seen=1, skipped=1)),
    "the two of a pair": (lambda s: s.choose(0, 1), Counts(paired=1)),
}
MODES = {"good": "TRIAGE", "bad": "TRIAGE", "neither": "TRIAGE", "the two of a pair": "SELECT"}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_counts_the_same_at_once_and_after_an_undo_and_after_opening_again(tmp_path, ahead, kind):
    verb, counts = ANSWERS[kind]
    settings = SessionSettings(CurationMode(MODES.get(kind, "ELO")))
    images = group(tmp_path, "a", 5)
    with CurationStore(tmp_path / "out") as store:
        walk = GroupWalk(CurationSession(store, settings), ahead(images))
        assert walk.counts == Counts()
        walk.act(verb)
        assert walk.counts == counts
        walk.act(verb if counts.paired == 0 else lambda session: session.go_on())
        walk.undo()
        assert walk.counts == counts, "after an undo"
    with CurationStore(tmp_path / "out") as store:
        walk = GroupWalk(CurationSession(store, settings), ahead(images))
        assert walk.counts == counts, "after opening again"
        walk.undo()
        assert walk.counts == Counts()


def test_a_scan_that_fails_fails_where_its_groups_are_taken(tmp_path, session):
    a = group(tmp_path, "a", 2)

    def scan(control: ScanControl) -> Iterator[Found]:
        yield a
        raise UserError("the folder is gone")

    with GroupsAhead(scan) as ahead:
        walk = GroupWalk(session, ahead)
        assert walk.group == a
        with pytest.raises(UserError, match="gone"):
            walk.act(lambda session: session.finish_group())


def finish_now(session: CurationSession) -> object:
    return session.finish_group()


def test_a_finished_group_comes_again_when_two_images_are_left_and_some_are_new(tmp_path, session, ahead):
    a, b, more = group(tmp_path, "a", 4), group(tmp_path, "b", 4), group(tmp_path, "a", 6)
    walk = GroupWalk(session, ahead(a, b))
    for _ in range(2):
        walk.act(lambda session: session.answer(best=session.state().question[0]))
        walk.act(lambda session: session.pick_now())
        walk.act(finish_now)
    assert (walk.group, walk.finished) == (None, 2)
    again = GroupWalk(session, ahead(b, more, finished=session.finished_groups()))
    assert (again.group, again.finished) == (more, 1)
    state = again.state()
    assert (state.phase, state.pairs, len(state.alive)) == (Phase.QUESTION, 1, 4)
    assert state.again == "2 images added since it was finished"
    again.act(lambda session: session.answer(best=session.state().question[0]))
    assert again.state().again == state.again, "it is said as long as the group is open"
    again.act(lambda session: session.pick_now())
    assert again.state().phase is Phase.CONTINUE, "one pair more was wanted"
    again.act(finish_now)
    third = GroupWalk(session, ahead(b, more, finished=session.finished_groups()))
    assert (third.group, third.finished) == (None, 2)


def test_new_images_that_leave_fewer_than_two_unused_ones_do_not_bring_a_group_back(tmp_path, session, ahead):
    a, more = group(tmp_path, "a", 2), group(tmp_path, "a", 3)
    walk = GroupWalk(session, ahead(a))
    walk.act(lambda session: session.answer(best=0))
    walk.act(lambda session: session.pick_now())
    assert walk.group is None
    assert GroupWalk(session, ahead(more, finished=session.finished_groups())).group is None


def test_raising_the_pairs_per_prompt_brings_finished_groups_back_until_they_have_them(tmp_path, ahead):
    images = group(tmp_path, "a", 8)

    def walk_with(store: CurationStore, pairs: int) -> GroupWalk:
        session = CurationSession(store, SessionSettings(CurationMode.SELECT, pairs_per_group=pairs))
        return GroupWalk(session, ahead(images, finished=session.finished_groups()))

    with CurationStore(tmp_path / "out") as store:
        walk = walk_with(store, 1)
        walk.act(lambda session: session.choose(0, 1))
        walk.act(finish_now)
        assert walk_with(store, 1).group is None
        walk = walk_with(store, 3)
        assert walk.state().again == "3 pairs are wanted now, but it has 1"
        walk.act(lambda session: session.choose(2, 3))
        assert walk.state().phase is Phase.QUESTION
        walk.act(lambda session: session.choose(4, 5))
        assert walk.state().phase is Phase.CONTINUE
        walk.act(finish_now)
        for pairs in (1, 2, 3):
            assert walk_with(store, pairs).group is None
        assert walk_with(store, 4).group == images


def test_a_group_that_grows_after_it_was_done_comes_again_in_the_same_session(tmp_path, session, ahead):
    a, b, more = group(tmp_path, "a", 2), group(tmp_path, "b", 2), group(tmp_path, "a", 5)
    go = threading.Event()
    found = ahead(a, b, go, more)
    walk = GroupWalk(session, found)
    walk.act(finish_now)
    assert walk.group == b
    go.set()
    walk.act(finish_now)
    assert walk.group == more
    assert walk.state().again == "3 images added since it was finished"
    assert walk.undo() == "b"


def test_groups_passed_over_are_counted_listed_and_can_be_opened(tmp_path, session, ahead):
    groups = [group(tmp_path, name, 4) for name in "abcd"]
    walk = GroupWalk(session, ahead(*groups))
    walk.act(finish_now)
    walk.act(lambda session: session.answer(best=0 if 0 in session.state().question else None))
    walk.act(lambda session: session.answer(best=session.state().question[0]))
    walk.act(lambda session: session.pick_now())
    walk.act(finish_now)
    walk.act(finish_now)
    assert walk.group == groups[3]
    assert walk.counts.passed == 2
    assert walk.passed() == [groups[0], groups[2]]
    again = GroupWalk(session, ahead(*groups, finished=session.finished_groups()))
    assert again.counts == walk.counts, "after opening again"
    walk.open("a")
    assert (walk.group, walk.state().phase, walk.counts.passed) == (groups[0], Phase.QUESTION, 1)
    walk.act(finish_now)
    assert walk.group == groups[3], "then the one that was left"
    assert walk.counts.passed == 2
    walk.open("c")
    assert walk.undo() == "c"
    assert (walk.group, walk.counts.passed) == (groups[3], 2), "the opening is taken back"
    with pytest.raises(Refused, match="not found"):
        walk.open("x")
    assert walk.group == groups[3]


def test_a_prompt_of_single_verdicts_is_judged_anew_when_it_is_opened_again(tmp_path, ahead):
    images = group(tmp_path, "a", 2)
    with CurationStore(tmp_path / "out") as store:
        walk = GroupWalk(CurationSession(store, SessionSettings(CurationMode.TRIAGE)), ahead(images))
        for _ in range(2):
            walk.act(lambda session: session.judge(True))
        assert (walk.group, walk.counts.passed) == (None, 1)
        walk.open("a")
        assert walk.state().question == (0,)
        walk.act(lambda session: session.judge(True))
        walk.act(lambda session: session.judge(False))
        assert (walk.counts.paired, walk.counts.passed) == (1, 0)
