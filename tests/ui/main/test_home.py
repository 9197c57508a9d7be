"""Home: a project from an empty window on, its five cards, and what happens when a step fails or is stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from modules.curation.CurationMode import DEFAULT_MODE, CurationMode
from modules.curation.group_state import SessionSettings
from modules.project.candidates.adding import add_images, images_in
from modules.project.Project import Project
from modules.ui.curation.ExportPage import ExportPage
from modules.ui.curation.PairToolMemory import PairToolMemory
from modules.ui.curation.StartPage import StartPage
from modules.ui.home import ProjectJob
from modules.ui.home.BoardView import BoardView
from modules.ui.home.StartView import StartView
from modules.ui.ImageWindow import ImageWindow
from modules.ui.state.SessionStore import SessionStore
from modules.ui.texts import home as start_words
from modules.util.image_metadata_util import read_metadata
from tests.project.candidates.test_adding import bright
from tests.project.test_from_images import by_a1111
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.demo_drivers import PATIENCE, pair_tool, press, settled
from tests.ui.main.drivers import Hands

pytestmark = pytest.mark.gui
PROGRAM = Path(__file__).with_name("taste_program.py")
PROMPTS = [f"a {colour} fox {number}" for colour in ("red", "blue") for number in range(5)]


@pytest.fixture(autouse=True)
def drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps draw and train without a model."""
    monkeypatch.setattr(ProjectJob, "SCRIPT", PROGRAM)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """One without images."""
    settings = {
        "model": {"type": "STABLE_DIFFUSION_15", "base": "resources/demo_model"},
        "generator": {"kind": "own", "device": "cpu"},
        "near_duplicates": -1,
    }
    return Project.create(tmp_path / "my taste", settings, "\n".join(PROMPTS), None)


@pytest.fixture
def board(open_window: OpenWindow, project: Project, tmp_path: Path) -> Iterator[tuple[Hands, BoardView]]:
    """The window with this project open."""
    hands = at_project(open_window, project, tmp_path)
    yield hands, board_of(hands)


def at_project(open_window: OpenWindow, project: Project, tmp_path: Path) -> Hands:
    store = SessionStore(tmp_path / "settings")
    memory, _ = store.load_window()
    memory.geometry, memory.appearance = "1240x680+10+10", "Dark"
    memory.remember_project(project.folder)
    return open_window(memory=memory, store=store)


def board_of(hands: Hands) -> BoardView:
    def there() -> bool:
        page = hands.window.current_page()
        return isinstance(page.view, BoardView) and page.view.watch.seen is not None  # type: ignore[attr-defined]

    hands.wait(there, "the project is not shown")
    view = hands.window.current_page().view  # type: ignore[attr-defined]
    assert isinstance(view, BoardView)
    return view


def text(board: BoardView, key: str) -> str:
    card = board.cards[key]
    return "\n".join(str(label.cget("text")) for label in (card.state_label, card.reason, card.fault))


def can_press(board: BoardView, key: str) -> bool:
    return not board.cards[key].button.instate(["disabled"])


def wait_for_step(hands: Hands, board: BoardView, key: str, seconds: float = PATIENCE) -> None:
    hands.wait(lambda: board.watch.job is None, f"{key} does not end", seconds)
    assert board.watch.faults == {}
    hands.wait(lambda: not board.watch._looking)
    hands.rest(0.1)


def pick_everything(hands: Hands) -> ExportPage:
    """With the arrow keys, until the last page of the pair tool."""
    tool = pair_tool(hands)
    hands.wait(lambda: settled(tool), "the pair tool does not get ready", PATIENCE)
    tool.window.focus_force()
    hands.wait(lambda: tool.window.focus_get() is not None)
    for _ in range(200):
        page = tool.page
        if page.shot.group is None:  # type: ignore[union-attr]
            break
        press(hands, tool, "Left")
    press(hands, tool, "Return")
    assert isinstance(tool.page, ExportPage)
    return tool.page


def test_from_an_empty_window_to_an_adapter_by_clicks(open_window: OpenWindow, tmp_path: Path) -> None:
    clicks = 0
    hands = open_window()
    start = hands.window.current_page().view  # type: ignore[attr-defined]
    assert hands.window.page == "home" and isinstance(start, StartView)

    def click(widget) -> None:  # type: ignore[no-untyped-def]
        nonlocal clicks
        clicks += 1
        hands.click(widget)

    click(start.create_button)
    assert "folder" in str(start.error.cget("text"))
    clicks = 0
    hands.focus(start.entries["folder"])
    hands.type(str(tmp_path / "taste"))
    click(start.demo_button)
    assert start.values["folder"].get() == str(tmp_path / "taste")
    click(start.create_button)
    board = board_of(hands)
    assert not can_press(board, "pick") and "all images of one prompt" in text(board, "pick")
    assert not can_press(board, "compare") and "Train this round first" in text(board, "compare")
    click(board.cards["generate"].button)
    wait_for_step(hands, board, "generate")
    assert "96 of 96 images" in text(board, "generate")
    click(board.cards["pick"].button)
    export = pick_everything(hands)
    hands.wait(lambda: hands.window.focus_get() is export.go)
    click(export.go)
    train = export.train_button
    assert train is not None
    hands.wait(lambda: not train.instate(["disabled"]), "it is not finalised", PATIENCE)
    assert str(train.cget("text")) == f"Train on these {board.watch.project.round.pair_count} pairs"
    click(train)
    hands.wait(lambda: board.watch.job is not None, "it does not train")
    wait_for_step(hands, board, "train")
    assert board.watch.project.round.trained["pairs"] == 16
    assert "Trained" in text(board, "train") and can_press(board, "compare")
    assert clicks <= 6


@pytest.mark.slow
def test_a_fault_stands_on_its_card_and_the_button_makes_the_rest(
    board: tuple[Hands, BoardView], project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands, view = board
    monkeypatch.setenv("DRAWER_FAILS_AFTER", "7")
    hands.click(view.cards["generate"].button)
    hands.wait(lambda: view.watch.faults and view.watch.job is None, "it does not fail", PATIENCE)
    assert "the drawer broke its pen" in text(view, "generate") and "buy another one" in text(
        view, "generate"
    )
    hands.wait(lambda: "7 of 48 images" in text(view, "generate"))
    assert str(view.cards["generate"].button.cget("text")) == "Make the rest"
    monkeypatch.delenv("DRAWER_FAILS_AFTER")
    hands.click(view.cards["generate"].button)
    wait_for_step(hands, view, "generate")
    assert not project.round.missing() and "pen" not in text(view, "generate")


def test_a_click_on_an_image_of_a_card_shows_it_large(
    open_window: OpenWindow, project: Project, tmp_path: Path
) -> None:
    by_a1111(tmp_path / "own", ["an owl", "a cat", "a fox"])
    for number, path in enumerate(sorted((tmp_path / "own").iterdir())):
        bright(path, 50 * number + 20)
    assert add_images(project, images_in([tmp_path / "own"])).added == 3
    hands = at_project(open_window, project, tmp_path)
    card = board_of(hands).cards["generate"]

    def drawn() -> list[int]:
        """The images without the frame of the focus, which may be drawn again at any time."""
        return [item for item in card.pictures.find_all() if card.pictures.type(item) == "image"]

    for number, prompt in enumerate(("an owl", "a cat", "a fox")):
        hands.wait(lambda: len(drawn()) == 3, "the images are not shown", PATIENCE)
        x, y = (int(at) for at in card.pictures.coords(drawn()[number]))
        hands.click(card.pictures, x, y)
        (shown,) = [c for c in hands.window.winfo_children() if isinstance(c, ImageWindow)]
        path = shown.shown.path
        assert (shown.shown.caption, read_metadata(path).prompt) == (prompt, prompt)
        hands.wait(lambda view=shown.view, path=path: view.shown == path, "it is not drawn")  # type: ignore[misc]
        hands.keys("Escape", to=shown)
        assert not shown.winfo_exists()
    # the same without a mouse: Tab leads from the images to the buttons next to them
    hands.focus(card.pictures)
    hands.keys("Tab")
    hands.expect_focus(card.button)
    hands.keys("<<PrevWindow>>")
    hands.expect_focus(card.pictures)
    hands.keys("Return")
    (shown,) = [c for c in hands.window.winfo_children() if isinstance(c, ImageWindow)]
    assert shown.shown.caption == "an owl"
    hands.keys("Escape", to=shown)
    hands.click(card.pictures, 1, 1)
    assert not [c for c in hands.window.winfo_children() if isinstance(c, ImageWindow)]


def test_a_folder_that_is_not_empty_is_refused_and_a_project_in_it_offered(
    open_window: OpenWindow, project: Project, tmp_path: Path
) -> None:
    hands = open_window()
    start = hands.window.current_page().view  # type: ignore[attr-defined]
    hands.focus(start.entries["folder"])
    hands.type(str(tmp_path))
    hands.click(start.demo_button)
    hands.click(start.create_button)
    hands.wait(lambda: start.error.cget("text"), "it is not refused")
    assert start.error.cget("text") == f"Folder: {tmp_path} is not empty\n  -> choose a new folder"
    start.values["folder"].set(str(project.folder))
    for label, opened in ((start_words.OPEN_NOT, False), (start_words.OPEN_IT, True)):
        hands.answer(label)
        hands.click(start.create_button)
        assert "my taste is already a project" in hands.asked[-1]
        assert (start.watch.project is not None) is opened
    assert start.watch.project.folder == project.folder


def test_picking_takes_no_sources_and_no_settings_of_another_session(
    open_window: OpenWindow, project: Project, tmp_path: Path
) -> None:
    before = tmp_path / "before.png"
    Image.new("RGB", (64, 64)).save(before)
    elsewhere = PairToolMemory(sources=str(before), edits=True, mode="ELO", pairs_per_group=4, certainty=60)
    elsewhere.save(tmp_path / "settings")
    assert DEFAULT_MODE.value != "ELO"
    by_a1111(tmp_path / "own", ["an owl", "an owl"])
    for number, path in enumerate(sorted((tmp_path / "own").iterdir())):
        bright(path, 50 * number + 20)
    assert add_images(project, images_in([tmp_path / "own"])).added == 2
    hands = at_project(open_window, project, tmp_path)
    view = board_of(hands)
    hands.wait(lambda: can_press(view, "pick"), "picking cannot begin", PATIENCE)
    hands.click(view.cards["pick"].button)
    tool = pair_tool(hands)
    hands.wait(lambda: settled(tool), "the pair tool does not get ready", PATIENCE)
    group = tool.page.shot.group  # type: ignore[union-attr]
    assert group is not None and group.sources == ()
    assert tool.controller.options.session == SessionSettings()  # type: ignore[union-attr]
    way, options = CurationMode("SELECT"), tool.controller.options  # type: ignore[union-attr]
    tool.show_start()
    hands.wait(lambda: isinstance(tool.page, StartPage))
    tool.start(replace(options, session=SessionSettings(way, 2, 0.9)))
    hands.wait(lambda: settled(tool) and project.round.way == way.value, "the way is not changed", PATIENCE)
    tool.close()
    hands.wait(lambda: view.watch.tool is None)
    hands.click(view.cards["pick"].button)
    again = pair_tool(hands)
    hands.wait(lambda: settled(again), "the pair tool does not get ready", PATIENCE)
    assert again.controller.options.session == SessionSettings(way, 2, 0.9)  # type: ignore[union-attr]


@pytest.mark.slow
def test_picking_begins_before_all_images_are_made(
    board: tuple[Hands, BoardView], project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands, view = board
    monkeypatch.setenv("DRAWER_SECONDS", "0.25")
    hands.click(view.cards["generate"].button)
    hands.wait(lambda: can_press(view, "pick"), "picking does not begin", PATIENCE)
    assert view.watch.job is not None
    hands.click(view.cards["pick"].button)
    tool = pair_tool(hands)
    hands.wait(lambda: settled(tool), "the pair tool does not get ready", PATIENCE)
    assert project.round.missing(), "all were made before the first question"
    assert len(tool.page.shot.group.files) == 6  # type: ignore[union-attr]
    export = pick_everything(hands)
    assert view.watch.job is None and not project.round.missing()
    hands.wait(lambda: "8 pairs from 8 prompts" in str(export.summary.cget("text")), "prompts are lost")
    tool.close()
    hands.wait(lambda: view.watch.tool is None)


def test_stop_keeps_what_was_made(
    board: tuple[Hands, BoardView], project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands, view = board
    monkeypatch.setenv("DRAWER_SECONDS", "0.3")
    button = view.cards["generate"].button
    hands.click(button)
    hands.wait(lambda: len(list(project.round.candidates.glob("*.png"))) > 2, "nothing is made", PATIENCE)
    assert str(button.cget("text")) == "Stop" and not can_press(view, "train")
    hands.click(button)
    wait_for_step(hands, view, "generate")
    made = 48 - len(Project(project.folder).round.missing())
    assert 2 <= made < 48 and f"{made} of 48 images" in text(view, "generate")


def test_pairs_finalised_while_images_are_made_are_not_trained_on_and_the_card_says_so(
    board: tuple[Hands, BoardView], project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands, view = board
    monkeypatch.setenv("DRAWER_SECONDS", "0.3")
    hands.click(view.cards["generate"].button)
    hands.wait(lambda: can_press(view, "pick"), "picking does not begin", PATIENCE)
    hands.click(view.cards["pick"].button)
    tool = pair_tool(hands)
    assert tool.train is not None
    tool.train(project.round.pairs)
    hands.wait(lambda: "Training has not started" in text(view, "train"), "nothing is said")
    assert view.watch.job is not None and view.watch.job.verb == "generate"
    assert "still making images" in text(view, "train") and "then press Train" in text(view, "train")
    tool.close()
    hands.wait(lambda: view.watch.tool is None)


class Endless:
    """A step that runs until it is stopped."""

    def __init__(self, verb: str, *_: object) -> None:
        self.verb, self.stopped, self.done, self.total = verb, False, 0, 0
        self._end = threading.Event()

    def wait(self) -> dict[str, object]:
        self._end.wait(PATIENCE)
        return {}

    def stop(self) -> None:
        self._end.set()


def test_closing_the_window_says_that_the_training_of_a_project_continues(
    board: tuple[Hands, BoardView], project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands, view = board
    monkeypatch.setattr("modules.ui.home.ProjectWatch.ProjectJob", Endless)
    view.watch.run("train")
    assert view.watch.job is not None
    hands.answer("Keep it open")
    hands.window.ask_quit()
    assert f"The run in {project.round.run.path} continues without this window." in hands.asked[-1]
    assert hands.window.winfo_exists()
    view.watch.job.stop()


def test_a_step_without_a_known_end_does_not_say_how_much_time_is_left(
    board: tuple[Hands, BoardView], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, view = board
    monkeypatch.setattr("modules.ui.home.ProjectWatch.ProjectJob", Endless)
    monkeypatch.setattr("modules.ui.home.BoardView.RATE_SECONDS", 0.0)
    view.watch.run("next", step="new-round")
    seen = view.watch.seen
    assert seen is not None and view.watch.job is not None
    step = seen.steps["new-round"]
    for done in (1, 2):  # the number of the round grows before the step ends
        view.watch.seen = replace(seen, steps={**seen.steps, "new-round": replace(step, done=done)})
        view.refresh()
        assert text(view, "new-round").strip() == "Loading\u2026"
    view.watch.job.stop()


def test_a_project_at_work_elsewhere_is_refused(board: tuple[Hands, BoardView], project: Project) -> None:
    hands, view = board
    with project.busy():  # in this process, which is another one than that of the step
        hands.click(view.cards["generate"].button)
        hands.wait(lambda: view.watch.faults, "it is not refused", PATIENCE)
        assert "another process is working in" in text(view, "generate")
    hands.wait(lambda: view.watch.job is None)
    hands.click(view.cards["generate"].button)
    wait_for_step(hands, view, "generate")
    assert "48 of 48 images" in text(view, "generate")


def test_a_project_is_open_again_at_the_next_start_and_can_be_left(
    board: tuple[Hands, BoardView], project: Project
) -> None:
    hands, view = board
    hands.window.set_view("Dark", 125)
    view = board_of(hands)
    assert str(view.name.cget("text")) == "my taste"
    hands.click(view.leave)
    start = hands.window.current_page().view  # type: ignore[attr-defined]
    assert isinstance(start, StartView) and hands.window.memory.project == ""
    (recent,) = start.recent_buttons
    hands.click(recent)
    assert board_of(hands).watch.project.folder == project.folder
    (project.folder / "project.json").write_text("{")
    hands.click(board_of(hands).leave)
    start = hands.window.current_page().view  # type: ignore[attr-defined]
    hands.click(start.recent_buttons[0])
    assert "cannot be opened" in str(start.open_error.cget("text"))
