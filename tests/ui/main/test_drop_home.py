"""Images, prompts, workflows, configs, projects and models dropped onto the Home page."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from PIL import Image

from modules.generator import registry
from modules.generator.Generator import Generator
from modules.project.beginning import DEMO_MODEL
from modules.project.Project import Project
from modules.spec.registry import FAMILIES
from modules.ui.home.BoardView import BoardView
from modules.ui.home.EditsDialog import EditsDialog
from modules.ui.home.StartView import StartView
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from tests.project.conftest import Drawer
from tests.project.test_edits import EditDrawer, write_tasks
from tests.project.test_from_images import GRAPH, PROMPTS, by_a1111, by_comfyui
from tests.tiny import tiny_folder
from tests.ui.main.conftest import OpenWindow
from tests.ui.main.demo_drivers import pair_tool
from tests.ui.main.drivers import Hands
from tests.ui.main.test_drop import drop
from tests.ui.main.test_home import at_project, board_of, drawing, project

pytestmark = pytest.mark.gui
__all__ = ["drawing", "project"]


@pytest.fixture
def form(open_window: OpenWindow) -> tuple[Hands, StartView]:
    """The form for a new project."""
    hands = open_window()
    assert getattr(hands.window, "drops_loaded", False), "tkinterdnd2 is required and does not load"
    view = hands.window.current_page().view  # type: ignore[attr-defined]
    assert isinstance(view, StartView)
    return hands, view


@pytest.fixture
def board(open_window: OpenWindow, project: Project, tmp_path: Path) -> tuple[Hands, BoardView]:
    """The cards of a project without images."""
    hands = at_project(open_window, project, tmp_path)
    assert getattr(hands.window, "drops_loaded", False), "tkinterdnd2 is required and does not load"
    return hands, board_of(hands)


def test_images_propose_a_project(form: tuple[Hands, StartView], tmp_path: Path) -> None:
    hands, view = form
    by_a1111(tmp_path / "im{ages", PROMPTS)
    images = sorted((tmp_path / "im{ages").iterdir())
    assert drop(view.prompts, images[:2]) == "copy"
    hands.wait(lambda: "From 2 images" in view.proposed.cget("text"), "files propose nothing")
    assert view.prompts.get("1.0", "end").split("\n")[:2] == ["a red fox", "a blue fox"]
    assert drop(view.create_button, [tmp_path / "im{ages"]) == "copy"
    hands.wait(lambda: "From 5 images" in view.proposed.cget("text"), "a folder proposes nothing")
    by_comfyui(tmp_path / "comfy", 1)
    drop(view, [tmp_path / "comfy" / "0.png"])
    hands.wait(lambda: "ComfyUI; the workflow in the images" in view.proposed.cget("text"), "its workflow is not taken")


def test_prompts_a_model_a_folder_and_a_workflow_fill_in_the_form(
    form: tuple[Hands, StartView], tmp_path: Path
) -> None:
    hands, view = form
    (tmp_path / "p.txt").write_text("# mine\na cat\na dog\nan owl\n")
    drop(view, [tmp_path / "p.txt"])
    hands.wait(lambda: "an owl" in view.prompts.get("1.0", "end"), "no prompts")
    drop(view, [DEMO_MODEL])
    hands.wait(lambda: view.values["base"].get().endswith("demo_model"), "no model")
    (tmp_path / "new").mkdir()
    drop(view, [tmp_path / "new"])
    hands.wait(lambda: view.values["folder"].get() == str(tmp_path / "new"), "no folder")
    (tmp_path / "w.json").write_text(json.dumps(GRAPH))
    drop(view, [tmp_path / "w.json"])
    hands.wait(lambda: "workflow w.json" in view.proposed.cget("text"), "no workflow")
    hands.click(view.create_button)
    hands.wait(lambda: view.watch.project is not None, "no project is made")
    made = Project(tmp_path / "new")
    assert made.file.generator == {"kind": "comfyui", "workflow": GRAPH}
    assert sorted([*made.prompts(), *made.file.held_out]) == ["a cat", "a dog", "an owl"]


def test_a_list_of_edits_makes_a_project_with_its_sources(
    form: tuple[Hands, StartView], tmp_path: Path
) -> None:
    hands, view = form
    rows = []
    for number in range(4):
        Image.new("RGB", (16, 16), (60 * number, 0, 0)).save(tmp_path / f"{number}.png")
        rows.append(json.dumps({"prompt": "make it night", "source": f"{number}.png"}))
    (tmp_path / "tasks.jsonl").write_text("\n".join(rows))
    drop(view, [tmp_path / "tasks.jsonl"])
    hands.wait(lambda: "tasks.jsonl" in view.prompts.get("1.0", "end"), "the list is not named")
    view.values["folder"].set(str(tmp_path / "new"))
    view.values["base"].set("nowhere/kontext")
    hands.click(view.create_button)
    hands.wait(lambda: "takes none" in str(view.error.cget("text")), "the mistake is not named")
    assert view.error.winfo_viewable() and not (tmp_path / "new").exists()
    view.type.set(FAMILIES["FLUX_KONTEXT_DEV_1"].label)
    hands.click(view.create_button)
    hands.wait(lambda: view.watch.project is not None, "no project is made")
    made = Project(tmp_path / "new")
    assert len({task.source for task in made.tasks()}) == 3 and made.file.edits


def test_the_window_responds_while_a_project_is_written(
    form: tuple[Hands, StartView], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands, view = form
    begun, may_end, faults = (
        threading.Event(),
        threading.Event(),
        [UserError("the disk is full", hint="free some")],
    )

    def slow(_settings: object) -> Generator:
        begun.set()
        assert may_end.wait(30)
        if faults:
            raise faults.pop()
        return Drawer()

    monkeypatch.setitem(registry.GENERATORS, "own", slow)
    view.values["folder"].set(str(tmp_path / "new"))
    view.values["base"].set("resources/demo_model")
    hands.focus(view.prompts)
    view.prompts.insert("1.0", "a cat\na dog\nan owl\n")
    hands.click(view.create_button)
    hands.wait(begun.is_set, "nothing is written")
    hands.focus(view.prompts)
    hands.keys("<Control-End>")
    hands.type("x")
    assert view.prompts.get("1.0", "end").strip().endswith("x"), "the window is frozen"
    assert view.create_button.instate(["disabled"])
    hands.focus(view.entries["folder"])
    hands.keys("<Return>")  # it is not created twice
    may_end.set()
    hands.wait(lambda: "the disk is full" in str(view.error.cget("text")), "the failure is not told")
    hands.wait(view.error.winfo_viewable)
    assert not (tmp_path / "new").exists() and not view.create_button.instate(["disabled"])
    hands.click(view.create_button)
    hands.wait(lambda: view.watch.project is not None, "no project is made")
    assert board_of(hands).watch.fault == ""


def test_edits_that_are_left_out_are_counted_with_what_to_do(
    open_window: OpenWindow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.GENERATORS, "own", lambda _settings: EditDrawer())
    key = "FLUX_KONTEXT_DEV_1"
    settings = {"model": {"type": key, "base": str(tiny_folder(key))}, "generator": {"kind": "own"}}
    edits = Project.create(tmp_path / "edits", settings, write_tasks(tmp_path / "photos"), None)
    by_a1111(tmp_path / "own", ["make it night"] * 3)
    first, *_ = sorted((tmp_path / "own").glob("*.png"))
    Image.new("RGB", (64, 64), (9, 9, 9)).save(first.with_name(f"{first.stem}-source.png"))
    hands = at_project(open_window, edits, tmp_path)
    drop(board_of(hands).cards["generate"], [tmp_path / "own"])
    hands.wait(lambda: "1 image added" in hands.status(), hands.status())
    assert "2 images left out: no usable source" in hands.status() and "NAME-source.png" in hands.status()
    dialog = hands.dialog()
    assert isinstance(dialog, EditsDialog)
    hands.expect_focus(dialog.sources.entry)
    hands.type(str(tmp_path / "photos" / "0" / "photo.png"))
    hands.keys("Return")
    # the instruction with the first source may be held out
    hands.wait(lambda: "no usable source" not in hands.status(), hands.status())
    assert "2 images added" in hands.status() or "2 images left out: prompt held out" in hands.status()
    assert not dialog.winfo_exists()


def test_a_config_is_opened_and_a_project_too(
    form: tuple[Hands, StartView], project: Project, tmp_path: Path
) -> None:
    hands, view = form
    TrainConfig(epochs=33).save(tmp_path / "c.json")
    drop(view, [tmp_path / "c.json"])
    hands.wait(lambda: hands.window.state_.config.epochs == 33, "the config is not opened")
    drop(view, [project.folder])
    assert board_of(hands).watch.project is not None


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("ui.json", '{"nodes": [], "links": []}', "Export (API)"),
        pytest.param("x.json", "{", "not valid JSON", marks=pytest.mark.slow),
        ("x.md", "", "x.md cannot be used here"),
        ("gone.png", None, "not a file or folder of this computer"),
        ("folder/x.md", "", "there are no images in folder"),
    ],
)
def test_what_does_not_belong_here_is_told(
    form: tuple[Hands, StartView], tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    hands, view = form
    if text is not None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    drop(view, [tmp_path / name.partition("/")[0]])
    hands.expect_dialog(said)


def test_a_mistake_stays_in_sight_below_the_form(form: tuple[Hands, StartView], tmp_path: Path) -> None:
    hands, view = form
    (tmp_path / "p.txt").write_text("# nothing\n")
    drop(view, [tmp_path / "p.txt"])
    hands.wait(lambda: view.error.cget("text"), "the mistake is not named")
    hands.window.set_view("Light", 150)
    hands.window.geometry("1240x640")
    hands.rest(0.3)
    view = hands.window.current_page().view  # type: ignore[attr-defined]
    hands.click(view.create_button)
    bottom = hands.window.bottom_bar.winfo_rooty()
    for part in (view.create_button, view.error):
        assert part.winfo_viewable() and part.winfo_rooty() + part.winfo_height() <= bottom
    assert "Choose a new folder" in view.error.cget("text")


def test_images_become_candidates(board: tuple[Hands, BoardView], project: Project, tmp_path: Path) -> None:
    hands, view = board
    by_a1111(tmp_path / "own", ["an owl", "an owl", "an elk", project.file.held_out[0]])
    card = view.cards["generate"]
    assert drop(card, [tmp_path / "own"]) == "copy"
    hands.wait(lambda: "3 images added" in hands.status(), hands.status())
    hands.expect_status("1 image left out: prompt held out for judging")
    hands.wait(lambda: "3 images of your own" in card.state_label.cget("text"), "the card does not tell")
    hands.wait(lambda: not view.cards["pick"].button.instate(["disabled"]), "they cannot be picked from")


def test_prompts_and_a_workflow_go_to_the_project(
    board: tuple[Hands, BoardView], project: Project, tmp_path: Path
) -> None:
    hands, view = board
    (tmp_path / "p.txt").write_text("an owl\n")
    drop(view, [tmp_path / "p.txt"])
    hands.wait(lambda: "1 prompt added" in hands.status(), hands.status())
    assert "an owl" in project.prompts()
    (tmp_path / "w.json").write_text(json.dumps(GRAPH))
    hands.answer("Cancel")
    drop(view, [tmp_path / "w.json"])
    hands.wait(lambda: len(hands.asked) == 1, "nobody asks")
    hands.rest(0.3)
    assert Project(project.folder).file.generator["kind"] == "own"
    by_comfyui(tmp_path / "comfy", 1)
    hands.answer("Use its workflow")
    drop(view, [tmp_path / "comfy" / "0.png"])
    hands.wait(lambda: "ComfyUI makes the images" in hands.status(), hands.status())
    assert Project(project.folder).file.generator["workflow"]["5"]["inputs"]["sampler_name"] == "dpmpp_2m"
    hands.answer("Pick from it")
    drop(view, [tmp_path / "comfy" / "0.png"])
    hands.wait(lambda: "1 image added" in hands.status(), hands.status())
    drop(view, [tmp_path / "w.json"])
    hands.expect_dialog("begin a new project")
    drop(view, [DEMO_MODEL])
    hands.expect_dialog("cannot be changed")
    (tmp_path / "empty").mkdir()
    drop(view, [tmp_path / "empty"])
    hands.expect_dialog("no images in empty")


def test_another_project_waits_until_the_pair_tool_is_closed(
    board: tuple[Hands, BoardView], project: Project, tmp_path: Path
) -> None:
    hands, view = board
    settings = {"model": {"type": "STABLE_DIFFUSION_15", "base": str(DEMO_MODEL)}, "generator": {"kind": "own"}}
    other = Project.create(tmp_path / "other", settings, "a cat\na dog\na bear", None)
    by_a1111(tmp_path / "own", ["an owl", "an owl"])
    drop(view, [tmp_path / "own"])
    hands.wait(lambda: not view.cards["pick"].button.instate(["disabled"]), "picking cannot begin")
    hands.click(view.cards["pick"].button)
    hands.wait(lambda: view.leave.instate(["disabled"]), "picks would go on in a project that is not shown")
    drop(view, [other.folder])
    hands.expect_dialog("A window of this project is open")
    assert view.watch.project is not None and view.watch.project.folder == project.folder
    pair_tool(hands).close()
    hands.wait(lambda: view.leave.instate(["!disabled"]))
    drop(view, [other.folder])
    hands.wait(lambda: view.watch.project is not None and view.watch.project.folder == other.folder)
