"""TRIAGE: verdicts on single images, and the pairs that follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.curation.CurationMode import CurationMode
from modules.curation.session import Phase
from tests.curation.test_session import open_session


def sources(session) -> list[tuple[str, str]]:
    return [
        tuple(Path(pair["sources"][side]).name for side in ("chosen", "rejected")) for pair in session.pairs()
    ]


def test_an_image_that_is_neither_is_in_no_pair(tmp_path):
    session, group = open_session(tmp_path, 4, mode=CurationMode.TRIAGE, pairs_per_group=2)
    for good in (True, None, False, None):
        state = session.judge(good)
    assert sources(session) == [(group.files[0], group.files[2])]
    assert state.phase is Phase.DONE, "with both pools empty there is nothing left to pair"


@pytest.mark.parametrize("verdict", [True, None])
def test_a_group_without_a_bad_image_ends_without_a_pair_and_undo_asks_again(tmp_path, verdict):
    session, _ = open_session(tmp_path, 3, mode=CurationMode.TRIAGE)
    for _ in range(3):
        state = session.judge(verdict)
    assert (state.phase, session.pairs()) == (Phase.DONE, [])
    session.undo()
    assert session.state().phase is Phase.QUESTION
    assert session.state().question == (2,)


def test_continuing_makes_further_pairs_from_what_is_left_of_the_pools(tmp_path):
    session, group = open_session(tmp_path, 5, mode=CurationMode.TRIAGE)
    for good in (True, True, False, False, None):
        state = session.judge(good)
    assert (state.phase, len(session.pairs())) == (Phase.CONTINUE, 1)
    state = session.go_on()
    assert len(session.pairs()) == 2
    used = {name for pair in sources(session) for name in pair}
    assert used == set(group.files[:4])
    assert state.phase in (Phase.CONTINUE, Phase.DONE)


def test_a_stop_between_the_last_verdict_and_the_pairing_is_made_up_for(tmp_path):
    session, group = open_session(tmp_path, 2, mode=CurationMode.TRIAGE)
    session.judge(True)
    session.store.append(group.key, "judge", {"file": group.files[1], "good": False})
    state = session.open(group)
    assert sources(session) == [(group.files[0], group.files[1])]
    assert state.phase is Phase.DONE


def test_an_end_that_follows_by_itself_is_undone_with_its_pick(tmp_path):
    session, _ = open_session(tmp_path, 6, mode=CurationMode.ELO)
    session.answer(best=session.state().question[0])
    session.pick_now()
    session.finish_group(automatic=True)
    session.undo()
    assert session.state().phase is Phase.QUESTION
    assert session.pairs() == []
    session.pick_now()
    session.finish_group()
    session.undo()
    assert session.state().phase is Phase.CONTINUE
    assert len(session.pairs()) == 1
