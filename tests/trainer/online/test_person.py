"""A run whose reward is a person: what it asks, what it waits for, and what is left after it was killed."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modules.reward.person import Shown, centred_ranks, expected_ranks
from modules.runner.votes.VoteBook import Question, Vote, VoteBook
from modules.trainer.online.VoteDesk import VoteDesk
from modules.util.errors import DataError, UserError
from scripts import runctl
from tests.trainer.builders import command, environment, run_here, same_weights
from tests.trainer.online.builders import Listening, write_online
from tests.usual import usual

Opinion = Callable[[VoteBook, Question], Vote]


def brightness(book: VoteBook, question: Question) -> list[float]:
    images = [Image.open(book.image(question, number)) for number in range(question.images)]
    return [float(np.asarray(image).mean()) for image in images]


def brightest(book: VoteBook, question: Question) -> Vote:
    """Likes the brighter half, the brightest most."""
    order = sorted(range(question.images), key=brightness(book, question).__getitem__)
    half = tuple(sorted(order[len(order) // 2 :]))
    return Vote(half, (order[0],), order[-1], True)


def everything(book: VoteBook, question: Question) -> Vote:
    return Vote(tuple(range(question.images)), done=True)


@contextmanager
def voter(run: Path, opinion: Opinion = brightest, most: int = 1000) -> Iterator[list[str]]:
    """Somebody who votes in the background; the keys of what was voted on."""
    given: list[str] = []
    end = threading.Event()

    def vote() -> None:
        book = VoteBook(run)
        while not end.wait(0.02) and len(given) < most:
            book.refresh()
            for one in book.open_questions()[:1]:
                book.give(one.key, opinion(book, one))
                given.append(one.key)

    thread = threading.Thread(target=vote)
    thread.start()
    try:
        yield given
    finally:
        end.set()
        thread.join()


def person(folder: Path, mode: str = "GRPO", **changes: Any) -> Path:
    return write_online(folder, mode, rlhf_reward="person", **changes)


class Votes(Listening):
    """Keeps what is told of votes too."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.wanted: list[tuple[str, Path, int]] = []
        self.sources: list[tuple[tuple[str, ...], tuple[Path, ...]]] = []
        self.counted: list[tuple[int, str, list[int], bool]] = []

    def votes_wanted(
        self,
        question: str,
        prompt: str,
        folder: Path,
        images: int,
        open_questions: int,
        sources: Sequence[tuple[str, Path]] = (),
    ) -> None:
        self.wanted.append((question, folder, images))
        self.sources.append((tuple(name for name, _ in sources), tuple(path for _, path in sources)))

    def votes_counted(self, group: int, by: str, levels: Any, teaches: bool) -> None:
        self.counted.append((group, by, list(levels), teaches))


def run_of(folder: Path) -> Path:
    return folder / "run"


@pytest.mark.parametrize("mode", usual(["GRPO", "NFT", "DGPO", "ONLINE_DPO"], "ONLINE_DPO"))
def test_votes_train(tmp_path: Path, mode: str) -> None:
    few: dict[str, Any] = {"epochs": 1, "rlhf_rollout_steps": 2}
    config, heard = person(tmp_path, mode, **few), Votes()
    with voter(run_of(tmp_path)) as given:
        run_here(config, callback=heard)
    assert [key for key, _, _ in heard.wanted] == given
    assert len(given) == 2 and all(images == 4 for _, _, images in heard.wanted)
    assert [by for _, by, _, _ in heard.counted] == ["person", "person"]
    assert all(teaches and sorted(levels) == [-1, 0, 1, 2] for _, _, levels, teaches in heard.counted)
    facts = next(one for one in heard.metrics if "rl/reward_mean" in one)
    # beaten minus lost to, over three others: 1, 1/3, -1/3, -1
    assert facts["rl/reward_mean"] == pytest.approx(0, abs=1e-6)
    assert facts["reward/person/std"] == pytest.approx(math.sqrt(5) / 3)
    again, other = Votes(), person(tmp_path / "other", mode, **few)
    with voter(run_of(tmp_path / "other"), lambda book, one: Vote((0,), done=True)):
        run_here(other, callback=again)
    assert not same_weights(tmp_path / "out.safetensors", tmp_path / "other" / "out.safetensors")


def test_votes_are_for_the_images_that_were_shown_in_whatever_order_they_were_made(tmp_path: Path) -> None:
    with voter(run_of(tmp_path)):
        run_here(person(tmp_path, epochs=1, rlhf_rollout_steps=2, rlhf_sampler="DISTRIBUTED_K_REPEAT"))
    (index,) = run_of(tmp_path).rglob("images.json")
    kept = json.loads(index.read_text(encoding="utf-8"))["images"]
    assert [one["id"] for one in kept] != sorted(one["id"] for one in kept)
    for group in {one["group"] for one in kept}:
        own = [one for one in kept if one["group"] == group]
        light = {one["id"]: float(np.asarray(Image.open(index.parent / one["file"])).mean()) for one in own}
        reward = {one["id"]: one["reward"] for one in own}
        # the darkest is disliked, the brightest liked most
        assert min(reward, key=reward.__getitem__) == min(light, key=light.__getitem__)
        assert max(reward, key=reward.__getitem__) == max(light, key=light.__getitem__)


def test_what_is_liked_alike_teaches_nothing_and_says_so(tmp_path: Path) -> None:
    heard = Votes()

    def one_of_two(book: VoteBook, question: Question) -> Vote:
        return everything(book, question) if question.group % 2 else brightest(book, question)

    with voter(run_of(tmp_path), one_of_two):
        run_here(person(tmp_path, epochs=1), callback=heard)
    assert sorted((group % 2, teaches) for group, _, _, teaches in heard.counted) == [(0, True), (1, False)]
    assert sum("nothing is learned from them" in one for one in heard.warnings) == 1
    assert heard.metrics[0]["rl/images"] == 4


def test_stopped_between_two_votes_nothing_is_lost(tmp_path: Path) -> None:
    with voter(run_of(tmp_path / "whole")):
        run_here(person(tmp_path / "whole", rlhf_rollout_steps=2))
    folder = tmp_path / "parts"
    config = person(folder, rlhf_rollout_steps=2)

    before = Votes()
    with voter(run_of(folder), most=3) as kept:
        stopper = threading.Thread(target=lambda: _stop_when(lambda: len(kept) == 3))
        stopper.start()
        stopped = run_here(config, callback=before)
        stopper.join()
    assert stopped.progress.global_step == 2
    heard = Votes()
    with voter(run_of(folder)) as rest:
        run_here(config, "continue_last_backup=true", callback=heard)
    # the third vote is not asked for again
    assert len(rest) == 1 and not set(rest) & set(kept)
    # the fourth may have been asked for right before the stop
    asked, again = ({key for key, _, _ in one.wanted} for one in (before, heard))
    assert again <= set(rest) <= asked | again
    assert same_weights(tmp_path / "whole" / "out.safetensors", folder / "out.safetensors")


def _stop_when(reached: Callable[[], bool]) -> None:
    while not reached():
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.child
def test_killed_between_two_votes_nothing_is_lost(tmp_path: Path) -> None:
    with voter(run_of(tmp_path / "whole")):
        run_here(person(tmp_path / "whole"), from_files=True)
    folder = tmp_path / "killed"
    config = person(folder, backup_after=1, backup_after_unit="STEP")
    kept: list[str] = []
    for votes in (1, 2, 1):
        with subprocess.Popen(
            command(config, "--set", "continue_last_backup=true"), env=environment(),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as trainer:  # fmt: skip
            try:
                with voter(run_of(folder), most=votes) as given:
                    until = time.monotonic() + 120
                    while (len(given) < votes or _open(folder) == 0) and trainer.poll() is None:
                        assert time.monotonic() < until
                        time.sleep(0.02)
                        if len(given) == votes and len(kept) + votes == 4:
                            break
            finally:
                trainer.kill()
        kept += given
    assert len(set(kept)) == len(kept) == 4
    run_here(config, "continue_last_backup=true", from_files=True)
    assert same_weights(tmp_path / "whole" / "out.safetensors", folder / "out.safetensors")


def _open(folder: Path) -> int:
    book = VoteBook(run_of(folder))
    book.refresh()
    return len(book.open_questions())


def test_prompts_that_nobody_votes_on_are_left_out_in_time(tmp_path: Path) -> None:
    heard = Votes()
    with voter(run_of(tmp_path), most=1):
        run_here(person(tmp_path, epochs=1, rlhf_person_timeout=0.7), callback=heard)
    assert [by for _, by, _, _ in heard.counted] in (["person", "nobody"], ["nobody", "person"])
    assert any("no vote came within 0.7 s" in one for one in heard.warnings)
    assert heard.metrics[0]["rl/images"] == 4
    resumed = VoteBook(run_of(tmp_path))
    resumed.refresh()
    late = next(one for one in resumed.questions.values() if one.dropped)
    with pytest.raises(UserError, match="nobody answered it in time"):
        resumed.give(late.key, Vote((0,), done=True))


@pytest.mark.slow
def test_epochs_without_any_vote_end_with_that_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.trainer.online.OnlineLoader.IDLE_EPOCHS", 2)
    with pytest.raises(DataError, match="2 epochs in a row had no image to learn from") as raised:
        run_here(person(tmp_path, epochs=3, rlhf_person_timeout=0.1))
    assert raised.value.field == "rlhf_person_timeout"
    assert "nobody voted" in str(raised.value) and "same reward" not in str(raised.value)


@pytest.mark.slow
def test_a_head_votes_on_what_the_person_does_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modules.reward.person.LEAST_COMPARISONS", 6)
    heard = Votes()
    with voter(run_of(tmp_path)) as given:
        run_here(person(tmp_path, epochs=3, rlhf_person_share=0.5, rlhf_rollout_steps=2), callback=heard)
    by = [who for _, who, _, _ in heard.counted]
    # all of the first epoch, then every other prompt
    assert by[:2] == ["person", "person"] and by.count("head") == 2
    assert len(given) == 4 == len(heard.wanted)


@pytest.mark.parametrize("sources", ["cat.png", [1], ["a.png"] * 10, None])
def test_a_question_with_impossible_sources_is_skipped(tmp_path: Path, sources: object) -> None:
    book = VoteBook(tmp_path)
    book.ask("00000000000000aa", "0-0", "make it night", 4, ["photos/cat.png"])
    record = {"asked": "00000000000000bb", "place": "0-1", "prompt": "a", "images": 4, "sources": sources}
    with (book.folder / "votes.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    read = VoteBook(tmp_path)
    read.refresh()
    assert [one.sources for one in read.questions.values()] == [("photos/cat.png",)]


def test_votes_from_a_terminal_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = VoteBook(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    first = book.ask("00000000000000aa", "0-0", "a red circle", 4)
    second = book.ask("00000000000000bb", "0-1", "a cat", 4)
    assert runctl.main([str(tmp_path), "votes", "--json"]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["question"] for one in listed] == [first.key, second.key]
    assert listed[0]["images"][3] == str(book.image(first, 3))
    given = ["--question", first.key, "--like", "0", "3", "--dislike", "1", "--best", "3"]
    assert runctl.main([str(tmp_path), "votes", *given]) == 0
    votes = tmp_path / "some.jsonl"
    votes.write_text(json.dumps({"question": second.key, "likes": [2]}) + "\n\n")
    assert runctl.main([str(tmp_path), "votes", "--file", str(votes)]) == 0
    read = VoteBook(tmp_path)
    read.refresh()
    assert read.questions[first.key].vote == Vote((0, 3), (1,), 3, True)
    assert read.questions[second.key].vote.levels(4) == (0, 0, 1, 0)
    assert not read.open_questions()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--like", "1"], "no question is named"),
        (["--question", "ffffffffffffffff", "--like", "1"], "has no question"),
        (["--question", "00000000000000aa", "--like", "4"], "there is no image 4"),
        (["--question", "00000000000000aa", "--like", "1", "--dislike", "1"], "both liked and disliked"),
        (["--question", "00000000000000aa", "--dislike", "1", "--best", "1"], "the best image is disliked"),
        (["--file", "missing.jsonl"], "does not exist"),
    ],
)
def test_votes_that_make_no_sense_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    book = VoteBook(tmp_path)
    book.ask("00000000000000aa", "0-0", "a red circle", 4)
    (tmp_path / "config.json").write_text("{}")
    assert runctl.main([str(tmp_path), "votes", *arguments]) == 2
    assert said in capsys.readouterr().err
    book.refresh()
    assert book.open_questions()[0].vote == Vote()


def test_a_half_written_line_and_a_hostile_one_change_nothing(tmp_path: Path) -> None:
    book = VoteBook(tmp_path)
    book.ask("00000000000000aa", "0-0", "a red circle", 4)
    records = tmp_path / "votes" / "votes.jsonl"
    with records.open("ab") as stream:
        stream.write(b'{"asked": "00000000000000cc", "place": "../../etc", "prompt": "", "images": 2}\n')
        stream.write(
            b'{"vote": "00000000000000aa", "likes": [99], "dislikes": [], "best": null, "done": true}\n'
        )
        stream.write(b'[1]\nnull\n{"vote": {}}\n{"vote": "00000000000000aa", "lik')
    other = VoteBook(tmp_path)
    other.give("00000000000000aa", Vote((1,), done=True))
    book.refresh()
    assert list(book.questions) == ["00000000000000aa"]
    assert book.questions["00000000000000aa"].vote == Vote((1,), done=True)


def test_ranks_are_centred() -> None:
    assert centred_ranks((2, 0, 0, -1)).tolist() == pytest.approx([1, 0, 0, -1])
    assert centred_ranks((1, 1, 1)).tolist() == [0, 0, 0]
    # three images, the first certainly best, the others equal
    pairs_Q2 = torch.tensor([[0, 1], [0, 2], [1, 2]])
    mean_Q = torch.tensor([100.0, 100.0, 0.0], dtype=torch.float64)
    assert expected_ranks(mean_Q, torch.ones(3).double(), pairs_Q2, 3).tolist() == pytest.approx(
        [1, -0.5, -0.5]
    )
    mean, variance = 1.3, 2.0
    p = 1 / (1 + math.exp(-mean / math.sqrt(1 + math.pi * variance / 8)))
    unsure = expected_ranks(
        torch.tensor([mean]).double(), torch.tensor([variance]).double(), torch.tensor([[0, 1]]), 2
    )
    assert unsure.tolist() == pytest.approx([2 * p - 1, 1 - 2 * p])


def test_several_processes_and_other_uses_are_refused(tmp_path: Path) -> None:
    from modules.trainer.online.settings import check_online
    from modules.util.config.load import load_config

    config = load_config(person(tmp_path))
    with pytest.raises(UserError, match="the votes of a person need a single process, not 2"):
        check_online(config, 2)


def test_what_nobody_answered_in_time_is_asked_again_when_the_run_is_started_again(tmp_path: Path) -> None:
    shown = Shown(0, 1, "a cat", torch.rand(2, 3, 16, 16))
    desk = VoteDesk(tmp_path, Votes(), lambda: False, timeout=0.05)
    desk.show(shown)
    assert desk.wait([1]) == {1: None}
    heard = Votes()
    again = VoteDesk(tmp_path, heard, lambda: False)
    again.show(shown)
    assert len(heard.wanted) == 1
    book = VoteBook(tmp_path)
    book.refresh()
    assert [one.key for one in book.open_questions()] == [key for key, _, _ in heard.wanted]
    book.give(heard.wanted[0][0], Vote((0,), done=True))
    assert again.wait([1]) == {1: (1, 0)}


def test_votes_are_not_for_images_that_a_run_wrote_before_it_failed_to_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, new = torch.full((2, 3, 16, 16), 0.9), torch.full((2, 3, 16, 16), 0.1)
    VoteDesk(tmp_path, Listening(), lambda: False).show(Shown(0, 1, "a cat", former))
    book = VoteBook(tmp_path)
    book.refresh()
    book.give(book.open_questions()[0].key, Vote((0,), done=True))

    def full(*_: Any) -> None:
        raise UserError("the disk is full")

    # a new run in the same folder
    with monkeypatch.context() as patch, pytest.raises(UserError):
        patch.setattr(VoteBook, "ask", full)
        VoteDesk(tmp_path, Listening(), lambda: False).show(Shown(0, 1, "a cat", new))
    heard = Votes()
    VoteDesk(tmp_path, heard, lambda: False).show(Shown(0, 1, "a cat", new))
    book.refresh()
    assert [one.key for one in book.open_questions()] == [key for key, _, _ in heard.wanted]
    assert len(heard.wanted) == 1


def test_votes_on_images_that_were_replaced_are_not_learned_from(tmp_path: Path) -> None:
    def shown(bright: float) -> Shown:
        images_KCHW = torch.full((2, 3, 16, 16), bright)
        images_KCHW[1] /= 2
        return Shown(0, 1, "a cat", images_KCHW)

    def asked(bright: float, vote: Vote) -> VoteDesk:
        desk = VoteDesk(tmp_path, Listening(), lambda: False)
        desk.show(shown(bright))
        book = VoteBook(tmp_path)
        book.refresh()
        (question,) = book.open_questions()
        book.give(question.key, vote)
        desk.wait([1])
        return desk

    (first,) = asked(1.0, Vote((0,), done=True)).earlier(1)
    assert (first.levels, float(first.images_KCHW[0].mean())) == ((1, 0), 1.0)
    # another run in the same folder makes other images of this prompt
    (second,) = asked(0.2, Vote((1,), done=True)).earlier(1)
    assert (second.levels, float(second.images_KCHW[0].mean())) == ((0, 1), pytest.approx(0.2))
