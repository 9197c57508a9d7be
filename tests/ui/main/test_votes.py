"""Questions of a run on the Run page, answered by keys and clicks."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from modules.runner.events import EventWriter
from modules.runner.RunDirectory import RunDirectory
from modules.runner.votes.VoteBook import Vote, VoteBook
from modules.ui.pages.RunPage import RunPage
from tests.ui.main.drivers import Hands

pytestmark = pytest.mark.gui
KEYS = ("00000000000000aa", "00000000000000bb")


def asking_run(folder: Path) -> RunDirectory:
    """A run that waits for votes on two prompts with four images each."""
    run = RunDirectory(folder).create()
    run.write_config({})
    book = VoteBook(run.path)
    for number, (key, prompt) in enumerate(zip(KEYS, ("a red circle", "a large cat"), strict=True)):
        for image in range(4):
            path = book.folder / f"0-{number}" / f"{image}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (64, 64), (60 * image, 90, 160)).save(path)
        book.ask(key, f"0-{number}", prompt, 4)
    return run


def kept(run: RunDirectory) -> list[Vote]:
    book = VoteBook(run.path)
    book.refresh()
    return [book.questions[key].vote for key in KEYS]


def test_questions_are_answered_by_keys_and_clicks(hands: Hands, tmp_path: Path) -> None:
    run = asking_run(tmp_path / "asking")
    hands.window.show_page("run")
    hands.window.runs.attach(str(run.path))
    page = hands.window.current_page()
    assert isinstance(page, RunPage)
    votes = page.votes
    hands.wait(lambda: votes.question is not None, "no question is shown")
    hands.wait(lambda: len(votes.images._photos) == 4, "the images do not appear")
    assert page.tabs.select() == str(votes) and page.tabs.tab(votes, "text") == "Votes (2)"
    assert "a red circle" in str(votes.title.cget("text"))

    canvas = votes.images.canvas
    hands.keys("<space>", to=canvas)
    assert kept(run)[0] == Vote((0,))
    hands.keys("<Right>", to=canvas)
    hands.keys("b", to=canvas)
    hands.keys("<Right>", to=canvas)
    hands.keys("d", to=canvas)
    hands.keys("<Key-4>", to=canvas)
    assert kept(run)[0] == Vote((0, 3), (2,), 1)
    hands.keys("<Key-4>", to=canvas)
    hands.keys("<Return>", to=canvas)
    assert kept(run)[0] == Vote((0,), (2,), 1, True)

    assert votes.question is not None and votes.question.key == KEYS[1]
    assert page.tabs.tab(votes, "text") == "Votes (1)"
    hands.wait(lambda: len(votes.images._photos) == 4)
    cell = votes.images.cell
    for button, column in ((1, 1), (3, 0)):
        place = {"x": column * cell + cell // 2, "y": cell // 2}
        canvas.event_generate(f"<ButtonPress-{button}>", **place)
        canvas.event_generate(f"<ButtonRelease-{button}>", **place)
        hands.rest()
    assert kept(run)[1] == Vote((1,), (0,))
    with EventWriter(run.events_path) as writer:
        writer.emit("votes_counted", group=0, by="person", levels=[1, 2, -1, 0], teaches=True)
    hands.keys("<Return>", to=canvas)
    hands.wait(lambda: "2 of 4 liked" in page.diary.get("1.0", "end"), "the diary does not tell")
    assert votes.question is None and page.tabs.tab(votes, "text") == "Votes"


def test_votes_on_a_second_run_that_made_the_same_images_are_its_own(hands: Hands, tmp_path: Path) -> None:
    first, second = (asking_run(tmp_path / name) for name in ("first", "second"))
    hands.window.show_page("run")
    hands.window.runs.attach(str(first.path))
    page = hands.window.current_page()
    assert isinstance(page, RunPage)
    hands.wait(lambda: page.votes.question is not None, "no question is shown")
    canvas = page.votes.images.canvas
    hands.focus(canvas)
    hands.keys("<Key-2>", to=canvas)
    hands.window.runs.attach(str(second.path))
    hands.focus(canvas)
    for key in ("<Key-1>", "<Key-3>"):
        hands.keys(key, to=canvas)
    assert (kept(first)[0], kept(second)[0]) == (Vote((1,)), Vote((0, 2)))


def test_the_source_is_next_to_its_images_and_gone_with_them(hands: Hands, tmp_path: Path) -> None:
    run = asking_run(tmp_path / "asking")
    book = VoteBook(run.path)
    Image.new("RGB", (64, 64), (250, 10, 10)).save(book.folder / "0-0" / "source-0.png")
    book.ask(KEYS[0], "0-0", "make it night", 4, ["photos/cat.png"])
    book.give(KEYS[1], Vote(done=True))
    hands.window.show_page("run")
    hands.window.runs.attach(str(run.path))
    page = hands.window.current_page()
    assert isinstance(page, RunPage)
    votes = page.votes
    view = votes.sources.views[0]
    hands.wait(lambda: view._photo is not None, "the source does not appear")
    assert view._caption == "Source  cat.png" and votes.sources.winfo_ismapped()
    assert view.winfo_rootx() < votes.images.winfo_rootx()
    hands.keys("<Return>", to=votes.images.canvas)
    assert votes.question is None and not votes.sources.winfo_ismapped()
