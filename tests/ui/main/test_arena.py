"""The arena's window: votes by keys, nothing told before the end, nothing lost in a kill."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from modules.arena.VoteStore import Vote, read_votes
from modules.project import judging
from modules.project.Project import Adapter, Project
from modules.project.proving import questions
from modules.ui.arena.ArenaWindow import ArenaWindow, open_arena_window
from modules.ui.arena.ResultPage import ResultPage
from modules.ui.arena.VotingPage import VotingPage
from modules.ui.home import ProjectJob
from modules.ui.home.CompareDialog import CompareDialog
from modules.ui.state.SessionStore import SessionStore
from modules.ui.texts import arena as words
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.demo_drivers import PATIENCE
from tests.ui.main.drivers import Hands
from tests.ui.main.test_home import PROGRAM, PROMPTS, at_project, board_of, text

pytestmark = pytest.mark.gui
ROOT = PROGRAM.parents[3]
SHOTS = os.environ.get("TASTEMAKER_SHOTS")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a trained round and the images of its comparison; the adapter's are brighter."""
    folder = tmp_path_factory.mktemp("arena") / "my taste"
    settings = {
        "model": {"type": "STABLE_DIFFUSION_15", "base": "resources/demo_model"},
        "generator": {"kind": "own", "device": "cpu"},
        "near_duplicates": -1,
    }
    project = Project.create(folder, settings, "\n".join(PROMPTS), None)
    one = project.round
    one.folder.mkdir()
    one.adapter_path.write_text("adapter of round-1")
    one.write_trained({"steps": 3, "pairs": 8, "adapter": "round-1/adapter.safetensors"})
    subprocess.run([sys.executable, PROGRAM, "compare", folder, "--prepare"], check=True, capture_output=True)
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    copy = tmp_path / "my taste"
    shutil.copytree(trained, copy)
    return copy


def arena_of(hands: Hands) -> ArenaWindow:
    found = [
        inner
        for window in hands.window.winfo_children()
        for inner in window.winfo_children()
        if isinstance(inner, ArenaWindow)
    ]
    assert len(found) == 1, "the arena is not open"
    return found[0]


def waits(arena: ArenaWindow) -> bool:
    """Whether it waits for a key."""
    page = arena.page
    if arena.worker.busy or arena.controller.waiting:
        return False
    return page.ready() if isinstance(page, VotingPage) else page is not None


def press(hands: Hands, arena: ArenaWindow, key: str) -> None:
    (arena.window.focus_get() or arena.window).event_generate(f"<KeyPress-{key}>")
    hands.wait(lambda: waits(arena), f"nothing comes of {key}", PATIENCE)


def brighter(page: VotingPage) -> str:
    """The key for the image of the adapter."""
    assert page.shot is not None and page.shot.ballot is not None
    left, right = (Image.open(path).getpixel((0, 0))[0] for path in page.shot.ballot.show)
    return "Left" if left > right else "Right"  # type: ignore[operator]


def open_the_arena(open_window: OpenWindow, folder: Path, tmp_path: Path) -> tuple[Hands, ArenaWindow]:
    hands = at_project(open_window, Project(folder), tmp_path)
    view = board_of(hands)
    assert str(view.cards["compare"].button.cget("style")) == "Accent.TButton"
    hands.click(view.cards["compare"].button)
    hands.wait(lambda: view.watch.tool is not None, "the arena does not open", PATIENCE)
    arena = arena_of(hands)
    hands.wait(lambda: waits(arena) and arena.page.shot is not None, "no question", PATIENCE)  # type: ignore[union-attr]
    arena.window.focus_force()
    hands.wait(lambda: arena.window.focus_get() is not None)
    return hands, arena


def kept(folder: Path) -> list[Vote]:
    return read_votes(folder / "arena")


def picture(hands: Hands, name: str) -> None:
    if SHOTS:
        hands.rest(0.4)
        hands.picture(Path(SHOTS) / f"{name}.png")


def test_votes_by_keys_until_it_is_decided(
    open_window: OpenWindow, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProjectJob, "SCRIPT", PROGRAM)
    hands, arena = open_the_arena(open_window, folder, tmp_path)
    page = arena.page
    assert isinstance(page, VotingPage)
    press(hands, arena, brighter(page))
    assert len(kept(folder)) == 1 and kept(folder)[0].best != "base"
    press(hands, arena, "Up")
    assert kept(folder)[1].best is None and not kept(folder)[1].skipped
    press(hands, arena, "Down")
    assert kept(folder)[2].skipped
    press(hands, arena, "BackSpace")
    assert len(kept(folder)) == 2
    press(hands, arena, "r")
    said = str(page.standing.cget("text"))
    assert "75%" in said and "not decided; perhaps they are equal" in said
    assert "round-1" not in said and "base" not in said and "round-1" not in arena.window.title()
    picture(hands, "arena-voting")
    while isinstance(arena.page, VotingPage):
        press(hands, arena, brighter(arena.page))
        assert len(kept(folder)) < 60
    result = arena.page
    assert isinstance(result, ResultPage) and len(kept(folder)) == 9
    assert "You preferred round-1 to base in 8 of 9 comparisons" in str(result.sentence.cget("text"))
    assert len(result.grid_.paths) == 18 and words.MORE not in result.buttons
    hands.rest(0.3)
    picture(hands, "arena-result")
    hands.click(result.buttons[words.CLOSE])
    view = board_of(hands)
    hands.wait(lambda: "You preferred round-1" in text(view, "compare"), "the card does not say it")
    assert str(view.cards["new-round"].button.cget("style")) == "Accent.TButton"
    picture(hands, "home-compared")
    hands.click(view.cards["new-round"].button)
    hands.wait(lambda: str(view.where.cget("text")) == "Round 2", "no next round", PATIENCE)
    assert "Round 1: You preferred" in str(view.earlier.cget("text"))


def xdotool(*arguments: str) -> str:
    done = subprocess.run(["xdotool", *arguments], capture_output=True, text=True, check=False, timeout=20)
    return done.stdout.strip()


def until(done: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def votes_on_disk(folder: Path) -> int:
    try:
        return len(kept(folder))
    except sqlite3.OperationalError:  # the tables are just being made
        return 0


def window_at(folder: Path, settings: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(ROOT / "scripts" / "train_ui.py"), "--settings-dir", str(settings)]
    return subprocess.Popen(command, cwd=ROOT)


def open_by_mouse(program: subprocess.Popen[bytes]) -> None:
    """Tab to the accented button of the Compare card and press it, by keys of the X server."""
    until(lambda: "Tastemaker" in xdotool("getwindowfocus", "getwindowname"), "the window has no focus")
    time.sleep(3.0)
    end = time.monotonic() + 60
    while "Arena" not in xdotool("getwindowfocus", "getwindowname"):
        assert time.monotonic() < end and program.poll() is None, "the arena does not open"
        width, height = 1240, 680
        # the Compare card's button: right column, fourth card
        xdotool("mousemove", str(10 + width - 100), str(10 + round(height * 0.68)), "click", "1")
        time.sleep(4.0)


def press_until_kept(folder: Path, name: str) -> None:
    """A key before the images are on the screen means nothing, as in the pair tool."""
    before, end = votes_on_disk(folder), time.monotonic() + 60
    while votes_on_disk(folder) == before:
        assert time.monotonic() < end, f"{name} gives no vote"
        xdotool("key", name)
        time.sleep(2.0)
    assert votes_on_disk(folder) == before + 1


@pytest.mark.slow  # starts the whole program twice
def test_a_killed_window_has_lost_no_vote(display: None, folder: Path, tmp_path: Path) -> None:
    if shutil.which("xdotool") is None:
        pytest.skip("xdotool is not installed")
    store = SessionStore(tmp_path / "settings")
    memory, _ = store.load_window()
    memory.geometry, memory.demo_answered, memory.appearance = "1240x680+10+10", True, "Dark"
    memory.remember_project(folder)
    store.save_window(memory)
    before = 0
    for _ in range(2):
        program = window_at(folder, tmp_path / "settings")
        try:
            open_by_mouse(program)
            for name in ("Left", "Up"):
                press_until_kept(folder, name)
            before += 2
        finally:
            program.send_signal(signal.SIGKILL)
            program.wait(20)
        assert votes_on_disk(folder) == before
    assert sum(vote.best is None for vote in kept(folder)) == 2


def lines_of(page: ResultPage) -> list[str]:
    """What it says."""
    return [
        str(child.cget("text"))
        for frame in page.winfo_children()
        for child in frame.winfo_children()
        if child.winfo_class() == "TLabel"
    ]


@pytest.mark.slow
def test_automatic_judges_are_told_apart_from_votes(
    open_window: OpenWindow, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProjectJob, "SCRIPT", PROGRAM)
    hands = at_project(open_window, Project(folder), tmp_path)
    view = board_of(hands)
    hands.click(view.judge)
    hands.wait(lambda: view.watch.job is None, "the judges do not end", PATIENCE)
    said = lambda: str(view.cards["compare"].state_label.cget("text"))  # noqa: E731
    hands.wait(lambda: "Automatic: Loss: less variety" in said(), f"no loss is shown: {said()}", PATIENCE)
    picture(hands, "judged_card")
    hands.click(view.cards["compare"].button)
    hands.wait(lambda: view.watch.tool is not None, "the arena does not open", PATIENCE)
    arena = arena_of(hands)
    hands.wait(lambda: waits(arena) and arena.page.shot is not None, "no question", PATIENCE)  # type: ignore[union-attr]
    arena.window.focus_force()
    hands.wait(lambda: arena.window.focus_get() is not None)
    page = arena.page
    assert isinstance(page, VotingPage)
    press(hands, arena, brighter(page))
    arena.show_result()
    hands.wait(lambda: isinstance(arena.page, ResultPage), "no result", PATIENCE)
    shown = lines_of(arena.page)
    assert "Automatic results, not your votes:" in shown
    assert any("Loss: images of round-1 follow their prompts less well than" in text for text in shown)
    picture(hands, "judged_result")


def test_contestants_and_strengths_are_chosen_in_the_window(
    open_window: OpenWindow, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProjectJob, "SCRIPT", PROGRAM)
    hands = at_project(open_window, Project(folder), tmp_path)
    view = board_of(hands)
    hands.click(view.contestants)
    (dialog,) = (child for child in hands.window.winfo_children() if isinstance(child, CompareDialog))
    hands.wait(dialog.winfo_viewable)
    assert [(row.name, row.chosen.get()) for row in dialog.rows] == [("round-1", True), ("base", True)]
    strengths = dialog.rows[0].strengths
    assert strengths is not None
    strengths.set("1, much")
    hands.click(dialog.compare)
    assert "between -10 and 10" in str(dialog.error.cget("text"))
    strengths.set("1, 0.5")
    dialog.count.set("20")
    picture(hands, "contestants")
    hands.click(dialog.compare)
    hands.wait(lambda: view.watch.tool is not None, "the arena does not open", PATIENCE)
    arena = arena_of(hands)
    hands.wait(lambda: waits(arena) and arena.page.shot is not None, "no question", PATIENCE)  # type: ignore[union-attr]
    opened = arena.controller._arena
    assert opened is not None
    assert [one.name for one in opened.contestants] == ["round-1", "round-1 at 0.5", "base"]
    assert [len(one.images) for one in opened.contestants] == [20, 20, 20]


def project_of_edits(tmp_path: Path) -> Project:
    """A trained project of edits, with the images of two questions."""
    for number in range(4):
        Image.new("RGB", (32, 32), (60 * number, 200, 10)).save(tmp_path / f"{number}.png")
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("\n".join(f'{{"prompt": "make it night", "source": "{n}.png"}}' for n in range(4)))
    settings = {
        "model": {"type": "FLUX_KONTEXT_DEV_1", "base": "nowhere"},
        "generator": {"kind": "own", "device": "cpu"},
    }
    project = Project.create(tmp_path / "edits", settings, tasks, None)
    one = project.round
    one.folder.mkdir()
    one.adapter_path.write_text("adapter of round-1")
    one.write_trained({"steps": 3, "pairs": 8, "adapter": "round-1/adapter.safetensors"})
    for shade, adapter in enumerate((project.newest, Adapter("base"))):
        images = project.folder / "arena" / "images" / adapter.key.replace("@", "-at-")
        images.mkdir(parents=True)
        for number, (_, seed) in enumerate(questions(project, 2)):
            Image.new("RGB", (32, 32), (100 * shade, 0, 0)).save(images / f"{number:04d}-{seed}.png")
    return project


def test_edits_are_shown_with_their_source(hands: Hands, tmp_path: Path) -> None:
    """The first question is about an edit; its source is left of both images, and gone at the result."""
    project = project_of_edits(tmp_path)
    window = open_arena_window(hands.window, hands.window.theme, project.folder, "", 2, lambda: None)
    arena = arena_of(hands)
    hands.wait(lambda: waits(arena) and isinstance(arena.page, VotingPage) and arena.page.shot is not None)
    page = arena.page
    assert isinstance(page, VotingPage) and page.shot is not None and page.shot.ballot is not None
    (source,) = page.shot.ballot.sources
    assert source.stem == project.file.held_out_sources[0]
    (view,) = page.sources
    hands.wait(lambda: view.shown == view.path and view.path is not None, "the source does not appear")
    assert view.winfo_rootx() < page.views[0].winfo_rootx() < page.views[1].winfo_rootx()
    assert view.winfo_width() > 100
    window.focus_force()
    hands.wait(lambda: arena.window.focus_get() is not None)
    for _ in range(2):
        press(hands, arena, "Left")
    assert len(kept(project.folder)) == 2 and isinstance(arena.page, ResultPage)


def test_who_types_elsewhere_when_the_arena_opens_casts_no_vote(
    hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens after minutes of making images, and takes the keyboard."""
    monkeypatch.setattr("modules.ui.arena.VotingPage.QUIET_MS", 1000)
    project = project_of_edits(tmp_path)
    window = open_arena_window(hands.window, hands.window.theme, project.folder, "", 2, lambda: None)
    arena = arena_of(hands)
    page = arena.page
    assert isinstance(page, VotingPage)
    typed = 0

    def type_until_asked() -> bool:
        nonlocal typed
        typed += 1
        type_all()
        views = (*page.views, *page.sources)
        return page.shot is not None and all(view.shown == view.path is not None for view in views)

    def type_all() -> None:
        for key in ("Left", "space", "e"):
            window.event_generate(f"<KeyPress-{key}>")

    window.focus_force()
    hands.wait(type_until_asked, "no question", PATIENCE)
    type_all()
    hands.wait(lambda: not arena.worker.busy and not arena.controller.waiting)
    assert typed and not kept(project.folder) and arena.page is page
    assert str(page.hint.cget("text")) == words.PAUSE
    hands.wait(lambda: waits(arena), "voting does not begin", PATIENCE)
    assert str(page.hint.cget("text")) == words.HINT
    press(hands, arena, "Left")
    assert len(kept(project.folder)) == 1


def test_a_result_tells_what_automatic_judges_found_below_the_votes(
    hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = project_of_edits(tmp_path)
    monkeypatch.setattr(judging, "SCRIPT", ROOT / "tests" / "project" / "fake_judges.py")
    (found,) = judging.judge(project, [project.newest, Adapter("base")], lambda _: None, 2)
    window = open_arena_window(hands.window, hands.window.theme, project.folder, "", 2, lambda: None)
    arena = arena_of(hands)
    hands.wait(lambda: waits(arena) and isinstance(arena.page, VotingPage) and arena.page.shot is not None)
    window.focus_force()
    hands.wait(lambda: arena.window.focus_get() is not None)
    for _ in range(2):
        press(hands, arena, "Left")
    assert isinstance(arena.page, ResultPage)
    said = lines_of(arena.page)
    place = said.index(words.AUTOMATIC)
    assert "You preferred" in said[0] and place > 0
    assert found["sentences"] and said[place + 1 :][: len(found["sentences"])] == found["sentences"]


def test_a_result_that_cannot_be_read_can_be_asked_for_again(hands: Hands, tmp_path: Path) -> None:
    project = project_of_edits(tmp_path)
    window = open_arena_window(hands.window, hands.window.theme, project.folder, "", 2, lambda: None)
    arena = arena_of(hands)
    hands.wait(lambda: waits(arena) and isinstance(arena.page, VotingPage) and arena.page.shot is not None)
    window.focus_force()
    hands.wait(lambda: arena.window.focus_get() is not None)
    press(hands, arena, "Left")
    away = (project.folder / "project.json").rename(tmp_path / "project.json")
    press(hands, arena, "Left")
    assert ["it has no project.json" in dialog.message for dialog in hands.dialogs()] == [True]
    hands.expect_dialog("it has no project.json")
    assert len(kept(project.folder)) == 2 and isinstance(arena.page, VotingPage)
    away.rename(project.folder / "project.json")
    window.focus_force()
    hands.wait(lambda: arena.window.focus_get() is not None)
    press(hands, arena, "e")
    assert isinstance(arena.page, ResultPage)
