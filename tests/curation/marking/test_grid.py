"""GRID without a window: marks on any prompt of a page, what they become, and what a taste learns from them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.curation import commands
from modules.curation.CurationMode import CurationMode
from modules.curation.group_state import SessionSettings, fold
from modules.curation.GroupsAhead import Found, GroupsAhead, ScanControl
from modules.curation.GroupWalk import GroupWalk
from modules.curation.ImageGroup import ImageGroup
from modules.curation.marking.advice import Known, Next, what_next
from modules.curation.marking.Marks import MOST_FOR_ONE, Marks
from modules.curation.marking.Sheet import Sheet, Strip
from modules.curation.session import CurationSession, Refused
from modules.curation.standing import likes_to_pairs
from modules.curation.store import CurationStore
from modules.util.files.EventLog import Event
from tests.curation.test_protocol import Client, Reply, make_groups

GRID = CurationMode("GRID")


def like(group: str, number: int, verb: str = "like") -> Reply:
    return {"do": verb, "group": f"key {group}", "file": f"{group}{number}.png"}


def seen(group: str, *numbers: int) -> Reply:
    return {"do": "seen", "group": f"key {group}", "files": [f"{group}{i}.png" for i in numbers]}


def marks(reply: Reply) -> dict[str, str]:
    return {image["file"]: image["mark"] for strip in reply["page"] for image in strip["images"]}


def pairs_of(client: Client) -> list[tuple[str, str]]:
    with CurationStore(client.folder / "out") as store:
        return [
            tuple(pair["sources"][side].rsplit("/", 1)[1] for side in ("chosen", "rejected"))
            for pair in store.pairs()
        ]


def test_any_prompt_of_the_page_can_be_marked_and_the_marks_are_there_next_time(tmp_path):
    client = Client(tmp_path, {"a": 3, "b": 4}, mode=GRID)
    start, *_, last = client(like("b", 2), like("a", 0, "dislike"), seen("b", 0, 1, 2), like("b", 1))
    assert [strip["prompt"] for strip in start["page"]] == ["a", "b"]
    assert set(marks(start).values()) == {"new"}
    said = {"a0.png": "dislike", "b0.png": "seen", "b1.png": "like", "b2.png": "like"}
    assert marks(last) == dict.fromkeys(marks(start), "new") | said
    assert (last["seen"], last["liked"], last["disliked"]) == (4, 2, 1)
    again, off = client(like("b", 1, "unmark"))
    assert marks(again) == marks(last)
    assert marks(off)["b1.png"] == "seen"


def test_undo_takes_marks_back_one_by_one_and_leaves_what_was_seen(tmp_path):
    client = Client(tmp_path, {"a": 3, "b": 4}, mode=GRID)
    *_, one, two, three, nothing = client(
        seen("a", 1), like("a", 0), like("b", 3), seen("b", 0), like("a", 0, "dislike"),
        {"do": "undo"}, {"do": "undo"}, {"do": "undo"}, {"do": "undo"},
    )  # fmt: skip
    assert (marks(one)["a0.png"], marks(one)["b3.png"]) == ("like", "like")
    assert (marks(two)["a0.png"], marks(two)["b3.png"]) == ("like", "new")
    assert Counter(marks(three).values()) == {"seen": 2, "new": 5}
    assert [strip["prompt"] for strip in three["page"]] == ["a", "b"], "the page stays as it is"
    assert nothing["message"] == "there is nothing to undo"


def test_every_like_makes_a_pair_whatever_number_is_wanted(tmp_path):
    client = Client(tmp_path, {"a": 8}, mode=GRID)
    *_, closed, done = client(
        like("a", 0), like("a", 1), like("a", 2), like("a", 3, "dislike"), seen("a", 4),
        {"do": "close"}, {"do": "finish_group"},
    )  # fmt: skip
    assert closed["exported"] == ["pair_0000", "pair_0001", "pair_0002"]
    assert done["type"] == "finished"
    found = pairs_of(client)
    assert [chosen for chosen, _ in found] == ["a0.png", "a1.png", "a2.png"]
    assert Counter(rejected for _, rejected in found) in (
        {"a3.png": 2, "a4.png": 1},
        {"a3.png": 1, "a4.png": 2},
    )
    assert found[0][1] == "a3.png", "dislikes come first"
    *_, back = client({"do": "undo"}, {"do": "undo"})
    assert back["type"] == "question" and marks(back)["a1.png"] == "like"
    assert pairs_of(client) == []


@pytest.mark.parametrize(
    "said",
    [[], [like("a", 0)], [like("a", 0, "dislike"), seen("a", 1)]],
    ids=["nothing", "alone", "disliked"],
)
def test_a_prompt_without_a_better_and_a_worse_image_gives_no_pair(tmp_path, said):
    client = Client(tmp_path, {"a": 3, "b": 3}, mode=GRID)
    *_, now = client(*said, {"do": "close"})
    assert (now["prompt"], now["pairs"], now["groups_finished"]) == ("b", 0, 1)


def test_an_image_that_went_away_is_left_out_and_the_other_likes_count(tmp_path):
    client = Client(tmp_path, {"a": 5}, mode=GRID)
    client(like("a", 0), like("a", 1), seen("a", 2, 3, 4))
    (tmp_path / "in" / "a0.png").unlink()
    client.groups = [client.groups[0]]
    *_, now = client({"do": "close"})
    assert "a0.png" in now["note"]
    assert [chosen for chosen, _ in pairs_of(client)] == ["a1.png"]


@pytest.mark.parametrize(
    ("request_", "part"),
    [
        ({"do": "like"}, '"file"'),
        ({"do": "like", "file": 3}, '"file"'),
        ({"do": "like", "file": "b0.png"}, "in a pair, or its prompt is done"),
        ({"do": "like", "file": "../../etc/passwd"}, "in a pair, or its prompt is done"),
        ({"do": "like", "file": "a0.png", "group": "nobody"}, "not on the page"),
        ({"do": "like", "file": "a0.png", "group": 7}, '"group"'),
        ({"do": "seen", "files": "a0.png"}, '"files"'),
        ({"do": "seen", "files": [1]}, '"files"'),
        ({"do": "judge", "good": True}, "not possible in the mode GRID"),
    ],
)
def test_a_request_that_makes_no_sense_changes_nothing(tmp_path, request_, part):
    client = Client(tmp_path, {"a": 3, "b": 3}, mode=GRID)
    start, reply, after = client(request_, {"do": "state"})
    assert reply["type"] == "error" and part in reply["message"]
    assert after == start


def test_marks_are_for_grid_alone(tmp_path):
    client = Client(tmp_path, {"a": 3})
    _, reply = client(like("a", 0))
    assert reply["type"] == "error"


class Search:
    """A walk whose search goes on when it is told to."""

    def __init__(self, store: CurationStore, first: list[ImageGroup], later: list[ImageGroup]) -> None:
        self._go_on = threading.Event()

        def scan(control: ScanControl) -> Iterator[Found]:
            control.counted(len(first))
            yield from first
            while not self._go_on.wait(0.01) and not control.stopped():
                pass
            yield from later

        self.ahead = GroupsAhead(scan)
        while len(self.ahead.coming(len(first))) < len(first):
            pass
        self.walk = GroupWalk(CurationSession(store, SessionSettings(GRID)), self.ahead)
        self.sheet = Sheet(self.walk)

    def go_on(self) -> None:
        self._go_on.set()
        assert self.ahead.take("none", wait=True) is None, "the scan has ended"

    def page(self) -> list[tuple[str, int]]:
        return [(one.group.prompt, len(one.files)) for one in self.sheet.strips()]


@pytest.fixture
def search(tmp_path: Path) -> Iterator[Callable[..., Search]]:
    """Groups by their prompts and sizes, those that are found at once and those that are found later."""
    made: list[Search] = []
    with CurationStore(tmp_path / "out") as store:

        def begin(first: dict[str, int], later: dict[str, int]) -> Search:
            groups = [make_groups(tmp_path / "in", sizes) for sizes in (first, later)]
            made.append(Search(store, *groups))
            return made[-1]

        yield begin
        for one in made:
            one.ahead.close()


def test_a_prompt_that_is_found_again_with_more_images_is_on_the_page_once(search):
    now = search({"a": 2, "b": 3}, {"a": 8, "c": 3})
    assert now.page() == [("a", 2), ("b", 3)]
    now.go_on()
    assert now.page() == [("a", 2), ("b", 3), ("c", 3)], "not twice"
    now.walk.advance()
    assert now.page() == [("a", 8), ("b", 3), ("c", 3)]
    now.sheet.mark("key a", "a7.png", True)
    now.sheet.see("key a", ["a6.png"])
    assert now.walk.counts.liked == 1


def drawn(now: Search) -> dict[str, list[str]]:
    return {one.group.key: one.files for one in now.sheet.strips()}


def test_only_what_was_on_the_page_is_finished_with_it(search):
    now = search({"a": 2, "b": 2}, {"b": 5, "c": 3})
    page = drawn(now)
    now.go_on()
    now.sheet.close(page)
    assert now.page() == [("b", 5), ("c", 3)], "nobody saw the new images of the second prompt, nor the third"
    assert now.walk.finished == 1
    with pytest.raises(Refused, match="more images of this prompt were found"):
        now.sheet.close(page)
    assert now.walk.finished == 1
    now.sheet.close(drawn(now))
    assert (now.page(), now.walk.finished) == ([], 3)
    assert now.walk.undo() == "key b", "one undo takes the page back"
    assert (now.page(), now.walk.finished) == ([("b", 5), ("c", 3)], 1)


def test_images_found_while_their_prompt_is_finished_bring_it_back(search):
    now = search({"a": 2, "b": 2}, {"a": 8})
    page = drawn(now)
    now.go_on()
    now.sheet.close(page)
    assert (now.page(), now.walk.finished) == ([("a", 8)], 1)


def test_the_list_of_likes_is_written_and_follows_undo(tmp_path):
    client = Client(tmp_path, {"a": 3, "b": 4}, mode=GRID)
    client(like("b", 1), like("a", 0), seen("a", 1), like("a", 2, "dislike"), {"do": "close"})
    out = tmp_path / "out"
    expected = [
        {"file": file, "prompt": file[0], "mark": mark, "why": "marked in the grid"}
        for file, mark in (("b1.png", "like"), ("a0.png", "like"), ("a2.png", "dislike"))
    ]
    assert commands.likes(out) == {"likes": 2, "dislikes": 1, "seen": 4, "marks": expected}
    commands.finalize(out, 0)
    assert json.loads((out / "likes.json").read_text()) == expected


def test_likes_that_an_import_listed_stay_when_the_pairs_are_finalised(tmp_path):
    client = Client(tmp_path, {"a": 3}, mode=GRID)
    client(like("a", 0), seen("a", 1), {"do": "close"})
    out, theirs = tmp_path / "out", {"file": "x.png", "prompt": "x", "mark": "like", "why": "starred in SwarmUI"}
    mine = {"file": "a0.png", "prompt": "a", "mark": "like", "why": "marked in the grid"}
    (out / "likes.json").write_text(json.dumps([theirs]))
    commands.finalize(out, 0)
    assert json.loads((out / "likes.json").read_text()) == [theirs, mine]
    commands.finalize(out, 0)
    assert json.loads((out / "likes.json").read_text()) == [theirs, mine]
    for other in ('{"posts": [1]}', "[1, 2]", "not JSON"):
        (out / "likes.json").write_text(other)
        commands.finalize(out, 0)
        assert (out / "likes.json").read_text() == other


numbers = st.lists(st.integers(0, 30), unique=True, max_size=9)


@given(numbers, st.data())
def test_every_like_is_chosen_once_and_worse_images_are_used_evenly(images, data):
    kinds = [data.draw(st.sampled_from("lds")) for _ in images]
    liked, disliked, seen_ = ([i for i, k in zip(images, kinds, strict=True) if k == kind] for kind in "lds")
    pairs = likes_to_pairs(liked, disliked, seen_, lambda a, b: abs(a - b))
    worse = [*disliked, *seen_]
    if not worse:
        assert pairs == []
        return
    assert sorted(chosen for chosen, _ in pairs) == sorted(liked)
    uses = Counter(rejected for _, rejected in pairs)
    assert set(uses) <= set(worse)
    assert max(uses.values(), default=0) <= -(-len(liked) // len(worse))
    if len(liked) >= len(disliked):
        assert set(disliked) <= set(uses), "dislikes are used before what was only seen"


def marked(*said: tuple[str, str, bool | None]) -> Marks:
    events = []
    for number, (group, file, one) in enumerate(said):
        kind, data = ("seen", {"files": [file]}) if one is None else ("mark", {"file": file, "like": one})
        events.append(Event(number, group, kind, {**data, "prompt": f"prompt {group}"}, 0.0))
    return Marks(events)


def test_a_taste_learns_within_prompts_and_across_them_only_where_it_must():
    found = marked(
        ("a", "a1", True), ("a", "a2", False), ("a", "a3", None),
        ("b", "b1", True), ("b", "b2", True),
        ("c", "c1", False), ("c", "c2", None),
    ).comparisons()  # fmt: skip
    said = {(one.better, one.worse) for one in found}
    assert {("a1", "a2"), ("a1", "a3"), ("c2", "c1")} <= said
    assert not {one for one in said if one[0] == "a1" and one[1][0] != "a"}
    across = [one for one in found if one.prompt != one.worse_prompt]
    assert {one.better for one in across} == {"b1", "b2"}, "only their prompt has nothing worse"
    assert all((one.prompt, one.worse_prompt[:6]) == ("prompt b", "prompt") for one in across)
    assert max(Counter(one.better for one in found).values()) <= MOST_FOR_ONE
    weight = {(one.better, one.worse): one.weight for one in found}
    assert sum(weight.values()) == pytest.approx(5), "each of the five marks counts once"
    assert weight["a1", "a3"] == 1 / 2 and weight["c2", "c1"] < 1


@pytest.mark.parametrize(
    ("liked", "looked_at", "known", "expected"),
    [
        (0, 0, None, (Next.MORE, 30)),
        (30, 30, None, (Next.BOTH, 0)),
        (1, 40, None, (Next.BOTH, 0)),
        (10, 40, None, (Next.MORE, 30)),
        (10, 40, Known(0.6, 0.45, 0.74), (Next.MORE, 30)),
        (10, 40, Known(0.7, 0.55, 0.82), (Next.FIRST, 0)),
        (40, 200, Known(0.9, 0.84, 0.94), (Next.ENOUGH, 0)),
    ],
)
def test_the_lower_end_of_the_interval_says_what_to_do(liked, looked_at, known, expected):
    assert what_next(liked, looked_at, known) == expected


class Name(str):
    """A file name that counts how often it is compared."""

    __hash__ = str.__hash__
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


def test_a_page_with_many_images_looks_at_every_name_only_a_few_times(tmp_path):
    files = tuple(Name(f"{number}.png") for number in range(300))
    group = ImageGroup("a fox", "a fox", "1:1", tmp_path, files)
    strip = Strip(group, fold(group, SessionSettings(GRID), []))
    Name.compared = 0
    said = {str(name): (strip.is_new(str(name)), strip.mark(str(name))) for name in strip.files}
    assert set(said.values()) == {(True, None)} and len(said) == 300
    assert Name.compared < 10 * 300
