"""Which answers of a round count."""

from __future__ import annotations

from modules.curation.CurationMode import CurationMode
from modules.curation.session import CurationSession, SessionSettings
from modules.curation.store import CurationStore
from modules.project.Round import Round
from modules.util.owned_files import Owned
from tests.curation.test_session import make_group


def test_a_skipped_question_is_no_answer(tmp_path):
    one = Round(Owned(tmp_path), 1)
    with CurationStore(one.pairs) as store:

        def opened(mode: str) -> CurationSession:
            session = CurationSession(store, SessionSettings(CurationMode(mode)))
            session.open(make_group(one.candidates, 4, f"a {mode.lower()} fox"))
            return session

        judging, comparing = opened("TRIAGE"), opened("ELO")
        judging.judge(None)
        comparing.skip()
        assert one.answers == 0
        judging.judge(False)
        comparing.answer(tie=True)
        comparing.answer(both_bad=True)
        comparing.answer(best=comparing.state().question[0])
        comparing.pick_now()
        assert one.answers == 4


def test_a_round_knows_the_way_of_choosing_that_was_used_last(tmp_path):
    one = Round(Owned(tmp_path), 1)
    assert one.way == ""
    with CurationStore(one.pairs) as store:
        assert one.way == ""
        session = CurationSession(store, SessionSettings(CurationMode("ELO")))
        session.open(make_group(one.candidates, 4))
        session.skip()
        assert one.way == "ELO"
        store.note_way("GRID")
        assert one.way == "GRID"


def test_a_pair_chosen_after_a_skipped_question_is_an_answer(tmp_path):
    one = Round(Owned(tmp_path), 1)
    with CurationStore(one.pairs) as store:
        group = make_group(one.candidates, 4)
        session = CurationSession(store, SessionSettings(CurationMode("SMART")))
        session.open(group)
        session.skip()
        session = CurationSession(store, SessionSettings(CurationMode("SELECT")))
        session.open(group)
        session.choose(0, 1)
    assert one.answers == 1
