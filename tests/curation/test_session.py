"""A whole picking session through its public verbs, on real files in a temporary folder."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from modules.curation.choosing.base import AnswerKind
from modules.curation.CurationMode import CurationMode
from modules.curation.group_state import Phase, SessionSettings
from modules.curation.ImageGroup import ImageGroup
from modules.curation.review.review import PairReview
from modules.curation.session import CurationSession, Refused
from modules.curation.store import CurationStore
from modules.util.dpo_curation_util import find_exported_file, load_manifest
from modules.util.errors import UserError
from tests.usual import usual


def make_group(root: Path, count: int, prompt: str = "a fox") -> ImageGroup:
    root.mkdir(parents=True, exist_ok=True)
    names = [f"{prompt.replace(' ', '_')}_{i}.png" for i in range(count)]
    for i, name in enumerate(names):
        Image.new("RGB", (16, 16), (i, 7 * i % 256, 0)).save(root / name)
    return ImageGroup(prompt, prompt, "1:1", root, tuple(names))


def open_session(tmp_path: Path, count: int = 6, **settings) -> tuple[CurationSession, ImageGroup]:
    store = CurationStore(tmp_path / "out")
    session = CurationSession(store, SessionSettings(**settings))
    group = make_group(tmp_path / "in", count)
    session.open(group)
    return session, group


def prefer_high_index(session: CurationSession) -> None:
    """Answer the open question as a person who likes later files better."""
    question = session.state().question
    if len(question) == 2:
        session.answer(best=max(question))
    else:
        session.answer(best=max(question), worst=min(question))


@pytest.mark.parametrize("mode", list(CurationMode))
def test_a_prompt_with_thousands_of_images_needs_no_matrix_of_all_of_them(tmp_path, mode):
    files = tuple(f"{i}.png" for i in range(3000))
    with CurationStore(tmp_path / "out") as store:
        session = CurationSession(store, SessionSettings(mode=mode))
        tracemalloc.start()
        try:
            state = session.open(ImageGroup("a fox", "a fox", "1:1", tmp_path, files))
            if mode.way.compares:
                state = session.answer(*state.question[:2])
                best, worst, *_ = (i for answer in state.answers for i in answer.places)
                assert state.standing.order([worst, 0, best])[0] == best
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert most < 16 * 2**20, "3000 x 3000 numbers alone are 72 MB"


@pytest.mark.parametrize("mode", [CurationMode.SMART, CurationMode.FOUR_UP])
def test_certain_modes_stop_by_themselves_with_the_best_over_the_worst(tmp_path, mode):
    session, group = open_session(tmp_path, 8, mode=mode)
    for _ in range(60):
        if session.state().phase is not Phase.QUESTION:
            break
        prefer_high_index(session)
    state = session.state()
    assert state.phase is Phase.CONTINUE
    (pair,) = session.pairs()
    assert pair["sources"]["chosen"].endswith(group.files[7])
    assert Path(pair["sources"]["rejected"]) in {group.path(i) for i in (0, 1)}
    assert len(state.alive) == 6


def test_elo_picks_when_told_and_asks_whether_to_continue(tmp_path):
    session, group = open_session(tmp_path, 4, mode=CurationMode.ELO)
    for _ in range(12):
        prefer_high_index(session)
    assert session.pairs() == []
    state = session.pick_now()
    assert state.phase is Phase.CONTINUE
    assert session.pairs()[0]["sources"]["chosen"] == str(group.path(3))
    assert session.pairs()[0]["sources"]["rejected"] == str(group.path(0))
    assert session.go_on().phase is Phase.QUESTION
    assert set(session.state().question) == {1, 2}
    prefer_high_index(session)
    assert session.pick_now().phase is Phase.DONE
    assert session.finished_groups().keys() == {group.key}


def test_cancel_after_a_pick_takes_the_pick_back_and_its_files(tmp_path):
    session, _ = open_session(tmp_path, 4, mode=CurationMode.ELO)
    prefer_high_index(session)
    answers = len(session.state().answers)
    session.pick_now()
    assert find_exported_file(tmp_path / "out", "chosen", "pair_0000") is not None
    session.undo()
    assert session.pairs() == []
    assert load_manifest(tmp_path / "out")["pairs"] == []
    assert list((tmp_path / "out" / "chosen").iterdir()) == []
    assert session.state().phase is Phase.QUESTION
    assert len(session.state().answers) == answers


def test_undo_goes_back_to_the_very_start_through_every_kind_of_event(tmp_path):
    session, group = open_session(tmp_path, 6, mode=CurationMode.SMART)
    questions = []
    while session.state().phase is Phase.QUESTION:
        questions.append(session.state().question)
        prefer_high_index(session)
    session.go_on()
    session.finish_group()
    other = make_group(tmp_path / "in", 3, "a hen")
    session.open(other)
    session.skip()
    session.answer(tie=True)
    assert session.undo() == other.key
    assert session.undo() == other.key
    seen = []
    while (key := session.undo()) is not None:
        assert key == group.key
        session.open(group)
        seen.append(session.state().question)
    assert session.pairs() == []
    assert [q for q in seen if q in questions][::-1][0] == questions[0]
    assert session.state().answers == []
    assert session.state().question == questions[0]


def test_an_automatic_pick_is_undone_together_with_the_answer_that_caused_it(tmp_path):
    session, _ = open_session(tmp_path, 2, mode=CurationMode.SMART, threshold=0.6)
    prefer_high_index(session)
    assert session.state().phase is Phase.DONE
    assert len(session.pairs()) == 1
    session.undo()
    assert session.pairs() == []
    assert session.state().phase is Phase.QUESTION
    assert session.state().answers == []


def test_declining_to_continue_is_undone_without_losing_the_pick(tmp_path):
    session, _ = open_session(tmp_path, 4, mode=CurationMode.SELECT)
    session.choose(0, 1)
    session.finish_group()
    assert session.state().phase is Phase.DONE
    session.undo()
    assert session.state().phase is Phase.CONTINUE
    assert len(session.pairs()) == 1


def test_triage_pairs_the_pools_by_visual_similarity(tmp_path):
    store = CurationStore(tmp_path / "out")
    group = make_group(tmp_path / "in", 4)
    order = {group.path(i): i for i in range(4)}
    session = CurationSession(
        store,
        SessionSettings(mode=CurationMode.TRIAGE, pairs_per_group=2),
        distance=lambda a, b: abs(order[a] - order[b]),
    )
    session.open(group)
    while session.state().phase is Phase.QUESTION and session.state().question:
        session.judge(good=session.state().question[0] in (0, 3))
    made = {(Path(p["sources"]["chosen"]).name, Path(p["sources"]["rejected"]).name) for p in session.pairs()}
    assert made == {(group.files[0], group.files[1]), (group.files[3], group.files[2])}
    assert session.state().phase is Phase.DONE


def test_ranked_review_exports_many_pairs_in_one_event(tmp_path):
    session, group = open_session(tmp_path, 6, mode=CurationMode.ELO)
    session.export_ranked([5, 4, 3, 2, 1, 0], 2)
    made = [(p["sources"]["chosen"], p["sources"]["rejected"]) for p in session.pairs()]
    assert made == [
        (str(group.path(5)), str(group.path(0))),
        (str(group.path(4)), str(group.path(1))),
    ]
    session.undo()
    assert session.pairs() == []


def test_a_session_resumes_after_reopening(tmp_path):
    session, group = open_session(tmp_path, 8, mode=CurationMode.SMART)
    for _ in range(4):
        prefer_high_index(session)
    before = session.state()
    session.store.close()
    with CurationStore(tmp_path / "out") as store:
        again = CurationSession(store, SessionSettings(mode=CurationMode.SMART))
        after = again.open(group)
        assert after.question == before.question
        assert after.answers == before.answers
        assert after.certainty == before.certainty


def test_a_removed_source_image_does_not_break_its_group(tmp_path):
    session, group = open_session(tmp_path, 5, mode=CurationMode.SMART)
    for _ in range(3):
        prefer_high_index(session)
    fewer = ImageGroup(group.key, group.prompt, group.aspectratio, group.root, group.files[1:])
    state = session.open(fewer)
    assert state.alive == [0, 1, 2, 3]
    assert all(0 not in a.places or group.files[0] not in fewer.files for a in state.answers)
    prefer_high_index(session)


def test_settings_out_of_range_are_refused():
    with pytest.raises(UserError, match="pairs_per_group"):
        SessionSettings(pairs_per_group=0)
    with pytest.raises(UserError, match="threshold"):
        SessionSettings(threshold=1.0)


def test_a_pick_is_refused_until_an_image_was_preferred_to_another(tmp_path):
    session, group = open_session(tmp_path, 4, mode=CurationMode.ELO)
    refused = "preferred to another"
    with pytest.raises(Refused, match=refused):
        session.pick_now()
    first = session.state().question
    session.skip()
    session.answer(tie=True)
    session.answer(both_bad=True)
    with pytest.raises(Refused, match=refused):
        session.pick_now()
    assert session.pairs() == []
    while not set(first).intersection(session.state().question):
        session.skip()
    best, worst = session.state().question
    session.answer(best=best)
    session.pick_now()
    (pair,) = session.pairs()
    assert pair["sources"] == {"chosen": str(group.path(best)), "rejected": str(group.path(worst))}


def test_images_that_were_in_no_answer_are_not_picked(tmp_path):
    session, group = open_session(tmp_path, 9, mode=CurationMode.ELO)
    judged = set()
    for _ in range(2):
        judged |= set(session.state().question)
        prefer_high_index(session)
    session.pick_now()
    (pair,) = session.pairs()
    assert {group.root / group.files[i] for i in judged} >= {Path(p) for p in pair["sources"].values()}


def stamped(group: ImageGroup) -> ImageGroup:
    infos = [group.path(i).stat() for i in range(len(group.files))]
    return replace(group, stamps=tuple((info.st_size, info.st_mtime_ns) for info in infos))


@pytest.mark.parametrize("what", ["deleted", "replaced"])
@pytest.mark.parametrize("mode", list(CurationMode), ids=lambda mode: mode.value)
def test_an_image_that_is_no_longer_the_one_that_was_shown_leaves_the_group(tmp_path, mode, what):
    session, group = open_session(tmp_path, 5, mode=mode, threshold=0.8)
    session.open(stamped(group))
    best = group.path(4)
    answered = 0
    while not session.note:
        assert session.state().phase is Phase.QUESTION, "no pair may hold the image"
        if answered == 1:
            best.unlink()
            if what == "replaced":
                Image.new("RGB", (16, 16), (200, 1, 2)).save(best)
        answered += 1
        assert answered < 60
        if mode.way.kind is AnswerKind.CHOOSE:
            if answered > 1:
                session.choose(4, 0)
        elif mode.way.kind is AnswerKind.MARK:
            if answered == 1:
                session.see(session.group, session.group.files)
                session.mark(session.group, session.group.files[4], True)
            else:
                session.close_marks()
        elif mode.way.kind is AnswerKind.JUDGE:
            session.judge(good=session.state().question[0] == 4)
        elif mode.way.stops_when_certain or answered < 12:
            prefer_high_index(session)
        else:
            session.pick_now()
    assert session.note == f"No pair was saved: {group.files[4]} was deleted, replaced or damaged."
    assert group.files[4] not in session.group.files
    for pair in session.pairs():
        assert str(best) not in pair["sources"].values()
    session.note = ""
    state = session.open(group)
    assert group.files[4] not in session.group.files, "it stays out until the folder is read again"
    for _ in range(60):
        if state.phase is not Phase.QUESTION:
            break
        if mode.way.kind is AnswerKind.CHOOSE:
            state = session.choose(3, 0)
        elif mode.way.stops_when_certain:
            prefer_high_index(session)
            state = session.state()
        else:
            state = session.pick_now()
    assert session.note == ""


def test_a_last_verdict_whose_pairs_cannot_be_saved_can_be_given_again(tmp_path):
    session, group = open_session(tmp_path, 2, mode=CurationMode.TRIAGE)
    session.judge(good=True)
    away = group.root.rename(tmp_path / "away")
    asked = session.state().question
    with pytest.raises(UserError, match="is missing"):
        session.judge(good=False)
    assert session.state().question == asked
    away.rename(group.root)
    session.judge(good=False)
    assert len(session.pairs()) == 1


@pytest.mark.parametrize("left_behind", ["nothing", "an empty folder"])
def test_answers_are_kept_while_the_drive_with_the_images_is_away(tmp_path, left_behind):
    session, group = open_session(tmp_path, 3, mode=CurationMode.ELO)
    for _ in range(4):
        prefer_high_index(session)
    before = session.store.events()
    away = group.root.rename(tmp_path / "away")
    if left_behind == "an empty folder":
        group.root.mkdir()
    with pytest.raises(UserError, match="the image folder .*in is missing, empty or cannot be read"):
        session.pick_now()
    assert session.store.events() == before
    if left_behind == "an empty folder":
        group.root.rmdir()
    away.rename(group.root)
    session.pick_now()
    assert [Path(pair["sources"]["chosen"]).name for pair in session.pairs()] == [group.files[2]]


def test_answers_about_a_replaced_image_do_not_count_for_the_one_in_its_place(tmp_path):
    session, group = open_session(tmp_path, 3, mode=CurationMode.ELO)
    session.open(stamped(group))
    for _ in range(4):
        prefer_high_index(session)
    Image.new("RGB", (16, 16), (200, 1, 2)).save(group.path(2))
    session.pick_now()
    assert session.pairs() == []
    again = CurationSession(session.store, session.settings)
    state = again.open(stamped(group))
    assert state.alive == [0, 1, 2]
    assert all(2 not in answer.places for answer in state.answers)


@pytest.mark.parametrize("mode", [CurationMode.SMART, CurationMode.FOUR_UP])
@pytest.mark.parametrize("count", usual([2, 3, 4, 8], 2, 3))
@pytest.mark.parametrize("verdict", [{"tie": True}, {"both_bad": True}])
def test_images_that_are_called_equal_again_and_again_are_left_without_a_pair(tmp_path, mode, count, verdict):
    session, group = open_session(tmp_path, count, mode=mode)
    asked = 0
    while session.state().phase is Phase.QUESTION:
        session.answer(**verdict)
        asked += 1
        assert asked <= 14 * count
    assert session.pairs() == []
    assert session.note == "These look equal: no pair was saved."
    assert session.finished_groups().without_pairs() == {group.key}
    session.undo()
    assert session.state().phase is Phase.QUESTION
    assert len(session.state().answers) == asked - 1


@pytest.mark.parametrize("count", usual([2, 4, 8], 2))
def test_a_person_who_contradicts_himself_is_not_asked_for_ever(tmp_path, count):
    session, _ = open_session(tmp_path, count, mode=CurationMode.SMART, threshold=0.999)
    asked = 0
    while session.state().phase is Phase.QUESTION:
        first, second = session.state().question
        seen = sum({first, second} == set(answer.places) for answer in session.state().answers)
        session.answer(best=min(first, second) if seen % 2 else max(first, second))
        asked += 1
        assert asked <= 100 * count


@pytest.mark.parametrize("per_group", [1, 2])
def test_the_next_target_counts_from_the_pairs_that_were_made(tmp_path, per_group):
    session, _ = open_session(tmp_path, 12, mode=CurationMode.ELO, pairs_per_group=per_group)
    state = session.export_ranked(list(range(12)), 3)
    assert (state.phase, state.pairs) == (Phase.CONTINUE, 3)
    assert session.go_on().phase is Phase.QUESTION
    for more in range(1, per_group + 1):
        prefer_high_index(session)
        state = session.pick_now()
        wanted = Phase.CONTINUE if more == per_group else Phase.QUESTION
        assert (state.phase, state.pairs) == (wanted, 3 + more), "asked after as many more as are wanted"


def test_undo_takes_back_an_answer_though_a_pair_was_removed_in_the_review_since(tmp_path):
    session, group = open_session(tmp_path, mode=CurationMode.SELECT)
    session.choose(0, 1)
    session.store.close()
    PairReview(tmp_path / "out").remove("pair_0000")
    with CurationStore(tmp_path / "out") as store:
        session = CurationSession(store, SessionSettings(CurationMode.SELECT))
        assert len(session.open(group).alive) == 4
        assert session.undo() == group.key
        assert len(session.state().alive) == 6
        assert session.undo() is None
