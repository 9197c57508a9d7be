"""What every way of choosing must do, from its texts to a saved pair; a new one is here by its file alone."""

from __future__ import annotations

import io
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from modules.curation.choosing.base import AnswerKind, Key, Layout, ways
from modules.curation.CurationMode import CurationMode
from modules.curation.GroupsAhead import GroupsAhead
from modules.curation.GroupWalk import GroupWalk
from modules.curation.PairServer import PairServer
from modules.curation.session import CurationSession, ImageGroup, Phase, SessionSettings
from modules.curation.simulation import Annotator, gap_curve
from modules.curation.standing import Situation
from modules.curation.store import CurationStore
from modules.ui.curation.PairToolMemory import PairToolMemory
from scripts.curate import make_parser
from tests.curation.test_session import make_group
from tests.source_tree import ROOT

MODES = list(CurationMode)
PAGE_KEYS = {"p", "r", "Control-z", "BackSpace", "z", "h", "t", "F1", "e", "f", "plus", "minus", "Escape"}
"""What keys mean on the choosing page whatever the way of choosing."""
SIZES = (2, 3, 4, 5, 9)

every_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)


def fresh(mode: CurationMode, images: int) -> Situation:
    return Situation(mode.way.standing(images, []), tuple(range(images)))


def keys_of(mode: CurationMode, images: int) -> tuple[Key, ...]:
    """The keys at the first question about a group of this many images."""
    return mode.way.keys(len(mode.way.question(fresh(mode, images), random.Random(0))))


def test_the_modes_are_the_ways_in_the_order_of_lists():
    assert [mode.value for mode in MODES] == list(ways())
    assert [mode.value for mode in MODES][:5] == ["SMART", "ELO", "FOUR_UP", "SELECT", "TRIAGE"]
    assert len({mode.way.order for mode in MODES}) == len(MODES)
    assert len({mode.way.title for mode in MODES}) == len(MODES)


@every_mode
def test_it_has_texts_a_person_can_choose_by(mode):
    way = mode.way
    assert 1 <= len(way.title.split()) <= 2
    assert 20 <= len(way.text) <= 120
    assert way.text.endswith(".")
    for images in SIZES:
        question = way.question(fresh(mode, images), random.Random(0))
        assert 5 <= len(way.hint(fresh(mode, images), len(question))) <= 80


@every_mode
@pytest.mark.parametrize("images", SIZES)
def test_its_keys_mean_one_thing_each_and_leave_those_of_the_page_alone(mode, images):
    keys = keys_of(mode, images)
    names = [name for key in keys for name in key.keys]
    assert len(names) == len(set(names))
    assert not PAGE_KEYS & set(names)
    assert len({key.label for key in keys}) == len(keys)
    assert sum(key.main for key in keys) <= 2


@every_mode
@pytest.mark.parametrize("images", [0, 1, *SIZES])
def test_it_asks_about_images_that_are_there_each_once(mode, images):
    for seed in range(5):
        question = mode.way.question(fresh(mode, images), random.Random(seed))
        assert len(set(question)) == len(question)
        assert set(question) <= set(range(images))
        if images > 1:
            assert question
            assert mode.way.kind is not AnswerKind.COMPARE or len(question) > 1
            assert mode.way.layout is not Layout.IMAGES or len(question) <= 9
        assert question == mode.way.question(fresh(mode, images), random.Random(seed)), "it keeps no state"


def open_session(tmp_path: Path, mode: CurationMode, images: int, **settings: Any) -> CurationSession:
    session = CurationSession(CurationStore(tmp_path / "out"), SessionSettings(mode, **settings))
    session.open(make_group(tmp_path / "in", images))
    return session


def answer(session: CurationSession) -> None:
    """As a person who likes later images better, and says so once every image was seen."""
    state = session.state()
    kind = session.way.kind
    if kind is AnswerKind.JUDGE:
        session.judge(state.question[0] >= len(session.group.files) // 2)
    elif kind is AnswerKind.CHOOSE:
        session.choose(max(state.question), min(state.question))
    elif kind is AnswerKind.MARK:
        session.mark(session.group, session.group.files[max(state.question)], True)
        session.see(session.group, [session.group.files[i] for i in state.question])
        session.close_marks()
    elif not session.way.stops_when_certain and all(state.standing.shown[i] > 1 for i in state.alive):
        session.pick_now()
    else:
        session.answer(max(state.question), min(state.question))


@every_mode
@pytest.mark.parametrize("images", SIZES)
def test_a_group_gives_its_pair_better_over_worse_and_ends(tmp_path, mode, images):
    session = open_session(tmp_path, mode, images)
    for _ in range(100):
        if session.state().phase is not Phase.QUESTION:
            break
        answer(session)
    assert session.state().phase is (Phase.CONTINUE if images > 3 else Phase.DONE)
    (pair,) = session.pairs()
    chosen, rejected = (int(Path(pair["sources"][s]).stem.split("_")[-1]) for s in ("chosen", "rejected"))
    assert chosen > rejected
    while session.undo() is not None:
        pass
    assert session.pairs() == []
    assert session.state().phase is Phase.QUESTION


class RecordingBoard:
    """Notes what keys ask for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *values: self.asked.append((name, *values))


@every_mode
@pytest.mark.parametrize("images", SIZES)
def test_every_key_asks_for_one_thing_that_fits_the_kind_of_answer(mode, images):
    fitting = {
        AnswerKind.COMPARE: {"better", "equal", "poor", "skip", "only_best"},
        AnswerKind.CHOOSE: {"mark_best", "mark_worst"},
        AnswerKind.JUDGE: {"judge"},
        AnswerKind.MARK: {"like", "dislike"},
    }[mode.way.kind] | {"next_prompt"}
    asked = []
    for key in keys_of(mode, images):
        board = RecordingBoard()
        key.do(board)
        assert len(board.asked) == 1
        asked += board.asked
    assert len(set(asked)) == len(asked)
    assert {name for name, *_ in asked} <= fitting


# --- where a person meets it --------------------------------------------------------------------------------------


@every_mode
def test_the_command_line_takes_it(mode):
    options = make_parser().parse_args(["serve-pairs", "in", "out", "--mode", mode.value])
    assert CurationMode(options.mode) is mode


@every_mode
def test_the_line_protocol_leads_to_a_pair(tmp_path, mode):
    group = make_group(tmp_path / "in", 5)
    scan = GroupsAhead(lambda control: iter([group]))
    with CurationStore(tmp_path / "out") as store, scan as ahead:
        session = CurationSession(store, SessionSettings(mode))
        server = PairServer(GroupWalk(session, ahead), io.BytesIO(), io.StringIO())
        now = server.where()
        for _ in range(100):
            assert now["type"] in ("question", "continue"), now
            if now["type"] == "continue":
                break
            now = server.reply(json.dumps(request(session, now, group)).encode())
        assert now["pairs"] == 1
        kinds = {
            "tie": AnswerKind.COMPARE,
            "choose": AnswerKind.CHOOSE,
            "judge": AnswerKind.JUDGE,
            "close": AnswerKind.MARK,
        }
        server.reply(b'{"do": "undo"}')
        for verb, kind in kinds.items():
            fields = {"good": None, "best": 0, "worst": 1}
            reply = server.reply(json.dumps({"do": verb, **fields}).encode())
            assert (reply["type"] == "error") == (kind is not mode.way.kind), reply
            if reply["type"] != "error":
                server.reply(b'{"do": "undo"}')


VERBS = {
    AnswerKind.COMPARE: {"answer", "tie", "both_bad", "skip", "pick", "ranking", "rank"},
    AnswerKind.CHOOSE: {"choose"},
    AnswerKind.JUDGE: {"judge"},
    AnswerKind.MARK: {"like", "dislike", "unmark", "seen", "close"},
}


@every_mode
def test_the_documents_say_what_it_asks_and_which_requests_it_takes(mode):
    text = (ROOT / "docs" / "curation.md").read_text(encoding="utf-8")
    assert len(re.findall(rf"^\| `{mode.value}` \| [^|]{{10,}} \| [^|]{{5,}} \|$", text, re.MULTILINE)) == 1
    taken = set()
    for requests, modes in re.findall(r"^\| (`[^|]+) \| ([A-Z_, ]+) \| ", text, re.MULTILINE):
        if mode.value in modes.split(", "):
            taken |= set(re.findall(r"`([a-z_]+)`", requests))
    assert taken & set().union(*VERBS.values()) == VERBS[mode.way.kind]


@every_mode
@pytest.mark.parametrize("images", SIZES)
def test_the_documents_name_its_keys(mode, images):
    text = (ROOT / "docs" / "pair-tool.md").read_text(encoding="utf-8")
    rows = re.search(r"\| key \| meaning \|\n(.*?)\n\n", text, re.DOTALL)[1]
    named = {name for row in rows.splitlines() for name in re.split(r"[,;] ", row.split("|")[1].strip())}
    named |= {"1", "2", "3", "4"} if "1 to 4" in named else set()
    words = {"space": "Space", "Return": "Enter"}
    for key in keys_of(mode, images):
        mine = [name for name in key.keys if not name.startswith("KP_")]
        assert {words.get(name, name if len(name) > 1 else name.upper()) for name in mine} <= named, key.label


@every_mode
@pytest.mark.parametrize("images", [2, 5])
def test_a_person_is_simulated_where_images_are_compared(mode, images):
    if mode.way.kind in (AnswerKind.JUDGE, AnswerKind.MARK):
        with pytest.raises(ValueError, match=f"{mode.value} asks for no comparisons"):
            gap_curve(mode, images, 30, 1, Annotator())
    else:
        shares = [
            gap_curve(mode, images, 40, seed, Annotator(careless=0.0, tie=0.0))[-1] for seed in range(5)
        ]
        assert sum(shares) / len(shares) > 0.8


@every_mode
def test_the_window_remembers_it(tmp_path, mode):
    PairToolMemory(mode=mode.value).save(tmp_path)
    assert PairToolMemory.load(tmp_path).mode == mode.value


def request(session: CurationSession, now: dict[str, Any], group: ImageGroup) -> dict[str, Any]:
    """What a client sends that prefers later files."""
    files = sorted(image["file"] for image in now["show"])
    if session.way.kind is AnswerKind.JUDGE:
        return {"do": "judge", "good": group.files.index(files[0]) > 1}
    if session.way.kind is AnswerKind.MARK:
        marks = {image["file"]: image["mark"] for image in now["page"][0]["images"]}
        if "like" not in marks.values():
            return {"do": "like", "file": files[-1]}
        new = [name for name, mark in marks.items() if mark == "new"]
        return {"do": "seen", "files": new} if new else {"do": "close"}
    if session.way.kind is AnswerKind.CHOOSE:
        return {"do": "choose", "best": files[-1], "worst": files[0]}
    if not session.way.stops_when_certain and now["answers"] > 5:
        return {"do": "pick"}
    return {"do": "answer", "best": files[-1], **({"worst": files[0]} if len(files) > 2 else {})}
