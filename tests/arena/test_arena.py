"""Blind voting: what is asked, what an answer does, what stays hidden, and when it ends."""

from __future__ import annotations

import io
import json
import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageColor

from modules.arena.Arena import Arena, Voted
from modules.arena.ArenaServer import ArenaServer
from modules.arena.Contestant import Contestant
from modules.arena.picture import CELL, GAP, GREY, HEAD, picture_of_votes
from modules.arena.VoteStore import Vote, VoteStore, read_votes
from modules.util.errors import UserError
from tests.scripts.test_curate_pairs import generated
from tests.tools.pictures import damaged_avif

Reply = dict[str, Any]
SHADES = {"plain": 10, "better": 200, "third": 100}


def made(root: Path, name: str, prompts: int = 4, seeds: int = 10) -> Contestant:
    """Images of a shade by which the tests tell who made them."""
    images = {}
    for prompt in range(prompts):
        for seed in range(seeds):
            path = root / name / f"{prompt}-{seed}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4), (SHADES[name], seed, prompt)).save(path)
            images[f"prompt {prompt}", seed] = path
    return Contestant(name, name, images)


def shade(path: str) -> int:
    with Image.open(path) as image:
        return image.getpixel((0, 0))[0]


class Voter:
    """Opens the arena again for every batch of requests."""

    def __init__(self, root: Path, *names: str, **settings: Any) -> None:
        self.root = root
        self.contestants = [made(root, name) for name in names or ("plain", "better")]
        self.settings = settings

    def __call__(self, *requests: Reply) -> list[Reply]:
        replies = io.StringIO()
        lines = "".join(json.dumps(request) + "\n" for request in requests).encode()
        with VoteStore(self.root / "arena") as store:
            ArenaServer(Arena(store, self.contestants, **self.settings), io.BytesIO(lines), replies).serve()
        return [json.loads(line) for line in replies.getvalue().splitlines()]

    def until_the_end(self, best: Any) -> list[Reply]:
        """Answers ``best(shades)``; all questions, and the last reply."""
        asked = []
        with VoteStore(self.root / "arena") as store:
            server = ArenaServer(Arena(store, self.contestants, **self.settings), io.BytesIO(), io.StringIO())
            now = server.where()
            while now["type"] == "question":
                shades = [shade(one["path"]) for one in now["show"]]
                asked.append({**now, "shades": shades})
                choice = best(shades)
                request = {"do": "tie"} if choice is None else {"do": "answer", "best": choice}
                now = server.reply(json.dumps(request).encode())
                assert now is not None
        return [*asked, now]


def brighter(shades: list[int]) -> int:
    return int(shades[1] > shades[0])


def test_a_clear_preference_is_decided_and_named(tmp_path):
    *asked, end = Voter(tmp_path).until_the_end(brighter)
    # 2^7 * 7! / 8! = 16, 2^8 * 8! / 9! = 28.4
    assert len(asked) == 8
    assert (end["because"], end["result"]["winner"], end["result"]["decided"]) == ("decided", "better", True)
    assert end["result"]["win_rate"] == 0.0
    assert end["result"]["sentence"].startswith("You preferred better to plain in 8 of 8 comparisons: 100%")


def test_questions_are_blind_fair_and_of_one_prompt_and_seed(tmp_path):
    voter = Voter(tmp_path, most_votes=40)
    *asked, end = voter.until_the_end(lambda shades: None)
    assert end["because"] == "votes" and "not decided" in end["result"]["sentence"]
    assert (end["result"]["win_rate"], end["result"]["pairs"][0]["ties"]) == (0.5, 40)
    text = json.dumps([{k: v for k, v in one.items() if k != "shades"} for one in asked])
    assert "plain" not in text and "better" not in text
    assert 10 <= sum(one["shades"] == [10, 200] for one in asked) <= 30
    assert {tuple(sorted(one["shades"])) for one in asked} == {(10, 200)}
    assert set(Counter(one["prompt"] for one in asked).values()) == {10}, "prompts come equally often"
    with VoteStore(tmp_path / "arena") as store:
        votes = list(store.votes())
    assert len({(vote.prompt, vote.seed) for vote in votes}) == 40, "no question comes twice"


def test_shown_images_are_those_of_the_prompt_and_seed(tmp_path):
    _, question, _ = Voter(tmp_path)()
    with VoteStore(tmp_path / "arena") as store:
        ballot = Arena(store, Voter(tmp_path).contestants).ballot
        assert ballot is not None and ballot.prompt == question["prompt"]
        for path in ballot.show:
            with Image.open(path) as image:
                _, seed, prompt = image.getpixel((0, 0))
            assert (f"prompt {prompt}", seed) == (ballot.prompt, ballot.seed)
    assert not (tmp_path / "arena" / "shown").exists()


def test_a_folder_of_the_same_name_keeps_what_a_person_has_in_it(tmp_path):
    shown = tmp_path / "arena" / "shown"
    (shown / "00001-left").mkdir(parents=True)
    (shown / "mine.png").write_bytes(b"mine")
    (shown / "00001-left.png").write_bytes(b"left by a killed program")
    with VoteStore(tmp_path / "arena") as store:
        assert store.show(shown / "mine.png", "00002-right.png").read_bytes() == b"mine"
    assert sorted(path.name for path in shown.iterdir()) == ["00001-left", "mine.png"]


def test_continuing_undoing_and_skipping(tmp_path):
    voter = Voter(tmp_path)
    _, first, second, bye = voter({"do": "answer", "best": 0})
    assert bye["result"]["votes"] == second["answers"] == 1
    _, again, undone, nothing, _ = voter({"do": "undo"}, {"do": "undo"})
    assert again == second and undone == first
    assert nothing["message"] == "there is nothing to undo"
    _, _, skipped, both_bad, bye = voter({"do": "skip"}, {"do": "both_bad"})
    assert (skipped["answers"], skipped["left"]) == (0, first["left"] - 1)
    assert (both_bad["answers"], bye["result"]["pairs"][0]["ties"]) == (1, 1)


def test_a_decision_can_be_undone(tmp_path):
    voter = Voter(tmp_path)
    *_, last, _ = voter.until_the_end(brighter)
    _, finished, question, _ = voter({"do": "undo"})
    assert finished["type"] == "finished"
    assert question == {k: v for k, v in last.items() if k != "shades"}


def test_undo_takes_back_no_vote_on_other_contestants(tmp_path):
    Voter(tmp_path)(*[{"do": "answer", "best": 0}] * 3)
    others = Voter(tmp_path, "plain", "third")
    _, _, refused, _ = others({"do": "undo"})
    assert refused["type"] == "error" and "nothing to undo" in refused["message"]
    _, _, _, undone, bye = others({"do": "tie"}, {"do": "undo"})
    assert (undone["answers"], bye["answers"]) == (0, 0)
    assert Voter(tmp_path)()[0]["answers"] == 3


@pytest.mark.parametrize("names", [("plain", "better"), ("plain", "better", "third")])
def test_images_that_disappear_while_voting_are_not_asked_about_and_no_vote_counts_twice(tmp_path, names):
    contestants = [made(tmp_path, name, 2, 6) for name in names]
    with VoteStore(tmp_path / "arena") as store:
        arena = Arena(store, contestants)
        left = {1, 4}
        for path in (tmp_path / "better").iterdir():
            if int(path.stem[-1]) not in left and (arena.ballot.prompt, arena.ballot.seed) != (
                f"prompt {path.stem[0]}",
                int(path.stem[-1]),
            ):
                path.unlink()
        asked = []
        while (ballot := arena.ballot) is not None:
            assert all(path.is_file() for path in ballot.show)
            asked.append((frozenset((ballot.left, ballot.right)), ballot.prompt, ballot.seed))
            arena.answer(None)
            assert arena.tally.votes == len(set(asked)) == len(asked)
        with_better = [seed for pair, _, seed in asked[1:] if 1 in pair]
        assert len(with_better) >= 3 and set(with_better) <= left
        assert (arena.ending.value, arena.left) == ("images", 0)


def test_images_that_are_gone_or_damaged_are_grey_in_the_picture_of_the_votes(tmp_path):
    white = tmp_path / "white.png"
    Image.new("RGB", (4, 4), "white").save(white)
    votes = [Voted("", white, tmp_path / "gone.png", 0), Voted("", damaged_avif(tmp_path / "damaged.avif"), white, 1)]
    with Image.open(io.BytesIO(picture_of_votes(votes, "white won"))) as sheet:
        row = HEAD + GAP + CELL // 2
        cells = [GAP + CELL // 2 + vote * (2 * CELL + 2 * GAP) + side * (CELL + GAP // 2)
                 for vote in (0, 1) for side in (0, 1)]  # fmt: skip
        grey, full = ImageColor.getrgb(GREY), (255, 255, 255)
        assert [sheet.getpixel((x, row)) for x in cells] == [full, grey, grey, full]


def test_several_contestants(tmp_path):
    *asked, end = Voter(tmp_path, "plain", "better", "third").until_the_end(brighter)
    assert end["result"]["winner"] == "better" and end["because"] == "decided"
    pairs = Counter(tuple(sorted(one["shades"])) for one in asked)
    # 60 = 20 for each of three pairs: 2^9 * 9! / 10! = 51, 2^10 * 10! / 11! = 93
    assert pairs[10, 200] == pairs[100, 200] == 10
    strengths = {one["name"]: one["strength"] for one in end["result"]["strengths"]}
    assert strengths["better"] == max(strengths.values())
    assert end["result"]["sentence"].startswith("better leads after")


def test_equal_contestants_are_rarely_told_apart(tmp_path):
    class Nobody(VoteStore):
        """Shows nothing."""

        def show(self, image: Path, name: str) -> Path:
            return image

    # a third one would have to lose as well before somebody wins, which hides a limit that is far too low
    contestants = [made(tmp_path, name) for name in ("plain", "better")]
    alarms = 0
    for session in range(40):
        rng = random.Random(session)
        with Nobody(tmp_path / str(session)) as store:
            store._db.execute("PRAGMA synchronous=OFF")
            arena = Arena(store, contestants, session, most_votes=40)
            while arena.ballot is not None:
                arena.answer(rng.choice([0, 1, None]))
            alarms += arena.tally.winner is not None
    assert alarms <= 4


@pytest.mark.parametrize(
    "request_, message",
    [
        ({"do": "answer", "best": 2}, "is not shown"),
        ({"do": "answer", "best": True}, "is not shown"),
        ({"do": "answer", "best": "nobody.png"}, "is not shown"),
        ({"do": "answer"}, "is not shown"),
        ({"do": "choose", "best": 0, "worst": 1}, "no request"),
    ],
)
def test_what_makes_no_sense_changes_nothing(tmp_path, request_, message):
    voter = Voter(tmp_path)
    _, before, reply, bye = voter(request_)
    assert reply["type"] == "error" and message in reply["message"]
    assert bye["answers"] == 0
    assert voter()[1] == before


def test_who_cannot_be_compared(tmp_path):
    plain, better = made(tmp_path, "plain"), made(tmp_path, "better")
    other = Contestant("other", "other", {("another prompt", 1): tmp_path / "x.png"})
    with VoteStore(tmp_path / "arena") as store:
        for contestants in ([plain], [plain, plain], [plain, other]):
            with pytest.raises(UserError):
                Arena(store, contestants)
        with pytest.raises(UserError, match="no image of the same"):
            Arena(store, [plain, better], may_ask=lambda prompt: False)
        with pytest.raises(UserError, match="open in another window"):
            VoteStore(tmp_path / "arena")


def test_a_folder_is_read_by_its_metadata(tmp_path):
    generated(tmp_path / "a" / "x.png", "a fox", 5)
    generated(tmp_path / "a" / "deeper" / "y.png", "a fox", 6)
    Image.new("RGB", (4, 4)).save(tmp_path / "a" / "silent.png")
    found = Contestant.of_folder("a", "a", tmp_path / "a")
    assert {key: path.name for key, path in found.images.items()} == {
        ("a fox", 5): "x.png",
        ("a fox", 6): "y.png",
    }
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError, match="no image"):
        Contestant.of_folder("b", "b", tmp_path / "b")


def test_a_damaged_store_is_refused(tmp_path):
    voter = Voter(tmp_path)
    voter({"do": "tie"})
    with VoteStore(tmp_path / "arena") as store:
        store.append("x", "vote", {"left": "plain", "right": "better", "prompt": "p", "seed": 1, "best": "who",
                                   "skipped": False})  # fmt: skip
    with pytest.raises(UserError, match="was not shown"):
        voter()
    with pytest.raises(UserError, match="was not shown"):
        read_votes(tmp_path / "arena")


@pytest.mark.parametrize("payload", ["[]", "3", "{}", '{"left": 1}', b"\xff", 5, "[" * 9999])
def test_a_damaged_vote_is_named_by_who_only_reads(tmp_path, payload):
    voter = Voter(tmp_path)
    voter({"do": "tie"})
    with closing(sqlite3.connect(tmp_path / "arena" / VoteStore.FILE)) as database, database:
        database.execute("UPDATE events SET payload = ?", (payload,))
    with pytest.raises(UserError):
        read_votes(tmp_path / "arena")


def test_a_vote_that_names_no_best_image_is_a_tie(tmp_path):
    with VoteStore(tmp_path / "arena") as store:
        store.append("x", "vote", {"left": "a", "right": "b", "prompt": "p", "seed": 1, "skipped": False})
        assert list(store.votes()) == read_votes(tmp_path / "arena") == [Vote("a", "b", "p", 1)]
