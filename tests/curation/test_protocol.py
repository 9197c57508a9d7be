"""The line protocol: every request is answered by one line, and a line that makes no sense changes nothing."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.curation.CurationMode import CurationMode
from modules.curation.GroupsAhead import GroupsAhead
from modules.curation.GroupWalk import GroupWalk
from modules.curation.LineServer import MAX_LINE
from modules.curation.PairServer import PairServer
from modules.curation.session import CurationSession, ImageGroup, SessionSettings
from modules.curation.store import CurationStore
from modules.util.errors import UserError

Reply = dict[str, Any]


def make_groups(root: Path, sizes: dict[str, int]) -> list[ImageGroup]:
    root.mkdir(exist_ok=True)
    groups = []
    for prompt, count in sizes.items():
        names = tuple(f"{prompt}{i}.png" for i in range(count))
        for i, name in enumerate(names):
            Image.new("RGB", (16, 16), (i, 7 * i % 256, 0)).save(root / name)
        groups.append(ImageGroup(f"key {prompt}", prompt, "1:1", root, names))
    return groups


class Client:
    """A server on the same thread: requests in, replies back, the session opened again each time."""

    def __init__(self, folder: Path, sizes: dict[str, int] | None = None, **settings: Any) -> None:
        self.folder = folder
        self.groups = make_groups(folder / "in", sizes or {"a": 3, "b": 4})
        self.settings = SessionSettings(**{"mode": CurationMode.ELO, **settings})

    def raw(self, data: bytes) -> list[Reply]:
        replies = io.StringIO()
        scan = GroupsAhead(lambda control: iter(self.groups))
        with CurationStore(self.folder / "out") as store, scan as ahead:
            walk = GroupWalk(CurationSession(store, self.settings), ahead)
            PairServer(walk, io.BytesIO(data), replies).serve()
        return [json.loads(line) for line in replies.getvalue().splitlines()]

    def __call__(self, *requests: Reply | str) -> list[Reply]:
        lines = [r if isinstance(r, str) else json.dumps(r) for r in requests]
        hello, *replies, bye = self.raw("".join(line + "\n" for line in lines).encode())
        assert (hello["type"], bye["type"]) == ("hello", "bye")
        return replies


LEFT = {"do": "answer", "best": 0}


def test_a_whole_session(tmp_path):
    client = Client(tmp_path)
    start, answered, picked, more, done = client(
        LEFT, {"do": "pick"}, {"do": "finish_group"}, {"do": "finish_group"}
    )
    assert start["type"] == "question"
    assert (start["prompt"], start["images"], len(start["show"])) == ("a", 3, 2)
    assert Path(start["show"][0]["path"]).is_file()
    assert answered["answers"] == 1
    # Two of three images are used up: one cannot make a pair, so the next group is open.
    assert picked["exported"] == ["pair_0000"]
    assert (picked["prompt"], picked["pairs"], picked["groups_finished"]) == ("b", 1, 1)
    assert more["type"] == "finished"
    assert done == {"type": "error", "message": "all groups are done", "hint": None}
    (pair,) = json.loads((tmp_path / "out" / "manifest.json").read_text())["pairs"]
    assert pair["sources"]["chosen"] == start["show"][0]["path"]


def test_continuing_where_it_was(tmp_path):
    client = Client(tmp_path)
    before = client(LEFT, LEFT, {"do": "skip"})[-1]
    (after,) = client()
    assert after == {k: v for k, v in before.items() if k != "exported"}


def test_continue_and_undo_into_the_group_before(tmp_path):
    client = Client(tmp_path, {"a": 5, "b": 3})
    replies = client(LEFT, {"do": "pick"}, {"do": "go_on"}, {"do": "undo"}, {"do": "finish_group"}, LEFT)
    assert [r["type"] for r in replies] == [
        "question",
        "question",
        "continue",
        "question",
        "continue",
        "question",
        "question",
    ]
    assert replies[-1]["prompt"] == "b"
    undone = client({"do": "undo"}, {"do": "undo"}, {"do": "undo"}, {"do": "undo"}, {"do": "undo"})
    assert [r.get("prompt") for r in undone] == ["b", "b", "a", "a", "a", None]
    assert undone[3]["type"] == "question"
    assert undone[3]["pairs"] == 0
    assert not (tmp_path / "out" / "chosen" / "pair_0000.png").exists()
    assert undone[5]["message"] == "there is nothing to undo"


def test_the_group_an_undo_left_comes_next(tmp_path):
    client = Client(tmp_path, {"a": 3, "b": 3, "c": 3})
    replies = client({"do": "finish_group"}, {"do": "undo"}, {"do": "finish_group"})
    assert [r["prompt"] for r in replies] == ["a", "b", "a", "b"]


def test_later_comes_back_after_the_others(tmp_path):
    client = Client(tmp_path, {"a": 3, "b": 3})
    replies = client({"do": "later"}, {"do": "finish_group"}, {"do": "later"}, {"do": "finish_group"})
    assert [r.get("prompt") for r in replies] == ["a", "b", "a", "a", None]


def test_smart_exports_by_itself(tmp_path):
    client = Client(tmp_path, {"a": 4}, mode=CurationMode.SMART)
    session: list[Reply] = []
    for _ in range(30):
        (now,) = client()
        if now["type"] != "question":
            break
        best = max(now["show"], key=lambda image: image["file"])["file"]
        session = client({"do": "answer", "best": best})
    assert now["type"] == "continue"
    assert session[-1]["exported"] == ["pair_0000"]
    assert now["pairs"] == 1


def test_four_up_select_and_triage(tmp_path):
    (tmp_path / "4").mkdir()
    four = Client(tmp_path / "4", {"a": 6}, mode=CurationMode.FOUR_UP)
    start, error, good = four(LEFT, {"do": "answer", "best": 0, "worst": 3})
    assert len(start["show"]) == 4
    assert error["type"] == "error"
    assert good["answers"] == 1
    (tmp_path / "s").mkdir()
    select = Client(tmp_path / "s", {"a": 4}, mode=CurationMode.SELECT)
    _, wrong, chosen = select(LEFT, {"do": "choose", "best": "a2.png", "worst": 0})
    assert "not possible in the mode SELECT" in wrong["message"]
    assert chosen["type"] == "continue"
    (tmp_path / "t").mkdir()
    triage = Client(tmp_path / "t", {"a": 4}, mode=CurationMode.TRIAGE)
    judged = triage(*({"do": "judge", "good": good} for good in (True, None, False, True)))
    assert judged[-1]["exported"] == ["pair_0000"]


def test_ranked_review(tmp_path):
    client = Client(tmp_path, {"a": 5})
    order = client({"do": "ranking"})[-1]["order"]
    names = sorted(row["file"] for row in order)
    wrong, made = client(
        {"do": "rank", "order": names[:-1], "count": 2}, {"do": "rank", "order": names, "count": 2}
    )[1:]
    assert "every remaining image" in wrong["message"]
    assert made["exported"] == ["pair_0000", "pair_0001"]
    with CurationStore(tmp_path / "out") as store:
        pairs = [[Path(p["sources"][s]).name for s in ("chosen", "rejected")] for p in store.pairs()]
    assert pairs == [["a0.png", "a4.png"], ["a1.png", "a3.png"]]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        '{"do": 3}',
        '{"do": "explode"}',
        '{"do": "answer"}',
        '{"do": "answer", "best": 2}',
        '{"do": "answer", "best": -1}',
        '{"do": "answer", "best": true}',
        '{"do": "answer", "best": "../../etc/passwd"}',
        '{"do": "answer", "best": 0, "worst": 0}',
        '{"do": "judge", "good": 1}',
        '{"do": "judge", "good": true}',
        '{"do": "choose", "best": 0, "worst": 1}',
        '{"do": "go_on"}',
        '{"do": "rank", "order": 5, "count": 1}',
        '{"do": "rank", "order": [], "count": true}',
        '{"do": "undo"}',
        "[" * 200000,
        '{"do": "answer", "best": NaN}',
    ],
)
def test_a_line_that_makes_no_sense_changes_nothing(tmp_path, line):
    client = Client(tmp_path)
    replies = client(line, {"do": "state"})
    errors = replies[1:-1]
    assert len(errors) == (1 if line else 0)
    assert all(r["type"] == "error" and r["message"] for r in errors)
    assert replies[-1] == replies[0]


def test_bytes_that_are_no_text_and_endless_lines(tmp_path):
    client = Client(tmp_path)
    replies = client.raw(b"\xff\xfe\n" + b"x" * (2 * MAX_LINE) + b'\n{"do": "state"}\nunfinished')
    assert [r["type"] for r in replies] == ["hello", "question", "error", "error", "question", "error", "bye"]


def test_source_images_that_are_gone_are_named_and_their_prompt_ends(tmp_path):
    client = Client(tmp_path)
    (tmp_path / "in" / "a0.png").unlink()
    (tmp_path / "in" / "a1.png").unlink()
    (tmp_path / "in" / "a2.png").unlink()
    replies = client(LEFT, {"do": "pick"}, {"do": "state"})
    gone = " and ".join(replies[0]["show"][place]["file"] for place in (0, 1))
    assert replies[2]["note"] == f"No pair was saved: {gone} were deleted, replaced or damaged."
    assert replies[2]["exported"] == []
    assert (replies[2]["prompt"], replies[2]["pairs"], replies[2]["groups_finished"]) == ("b", 0, 1)
    assert replies[3] == {k: v for k, v in replies[2].items() if k not in ("note", "exported")}


def test_a_pick_before_any_preference_is_refused(tmp_path):
    _, refused, tied, still, picked = Client(tmp_path)({"do": "pick"}, {"do": "tie"}, {"do": "pick"}, LEFT)
    assert refused["type"] == still["type"] == "error"
    assert refused["message"] == "no image has been preferred to another one yet"
    assert (tied["answers"], picked["answers"], picked["pairs"]) == (1, 2, 0)


def test_prompts_passed_over_are_listed_and_opened(tmp_path):
    client = Client(tmp_path, {"a": 4, "b": 4})
    replies = client(
        {"do": "finish_group"}, {"do": "finish_group"}, {"do": "passed"}, {"do": "open", "group": "key b"}
    )
    assert replies[2]["type"] == "finished"
    assert (replies[3]["type"], replies[3]["count"]) == ("passed", 2)
    assert [(one["group"], one["prompt"]) for one in replies[3]["groups"]] == [("key a", "a"), ("key b", "b")]
    assert (replies[4]["type"], replies[4]["prompt"]) == ("question", "b")
    undone, wrong, none = client({"do": "undo"}, {"do": "open", "group": "x"}, {"do": "open"})[1:]
    assert (undone["type"], undone["undone"]) == ("finished", "key b")
    assert "not found" in wrong["message"]
    assert none["message"] == 'this needs "group": the group of an earlier reply'


def test_a_finished_prompt_says_why_it_comes_again(tmp_path):
    Client(tmp_path, {"a": 3})({"do": "finish_group"})
    (now,) = Client(tmp_path, {"a": 5})()
    assert (now["type"], now["again"]) == ("question", "2 images added since it was finished")


def test_images_that_look_equal_end_without_a_pair_and_a_note(tmp_path):
    replies = Client(tmp_path, {"a": 4, "b": 3}, mode=CurationMode.SMART)(*[{"do": "tie"}] * 40)
    first = next(place for place, reply in enumerate(replies) if reply["prompt"] == "b")
    assert replies[first]["note"] == "These look equal: no pair was saved."
    # each of the six pairs was asked about several times, and not for ever
    assert 18 <= first <= 40


def test_statistics_and_quit(tmp_path):
    replies = Client(tmp_path)(LEFT, {"do": "tie"}, {"do": "both_bad"}, {"do": "stats"}, {"do": "quit"}, LEFT)
    assert (replies[-1]["questions"], replies[-1]["ties"], replies[-1]["both_bad"]) == (3, 1, 1)


def test_a_second_session_is_refused(tmp_path):
    client = Client(tmp_path)
    with CurationStore(tmp_path / "out"), pytest.raises(UserError, match="another window"):
        client()
